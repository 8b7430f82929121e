"""Steps that take longer and longer: a trend that is significant, large and gradual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.finding import Finding, Severity
from traceml_daemon.diagnosis.profile import OWN_PHASES, WAITING, Floats, RunProfile
from traceml_daemon.diagnosis.robust import Blocks, mann_kendall, median, theil_sen, thinned
from traceml_daemon.diagnosis.wording import confidence, milliseconds


@dataclass(frozen=True, slots=True)
class _Trend:
    segments: Floats
    """Median step by eighths of the run."""
    slope_ms: float
    """By step."""
    rise_ms: float
    z: float
    num_rises: int

    @property
    def growth(self) -> float:
        return self.rise_ms / max(float(self.segments.mean()) - self.rise_ms / 2, float(self.segments[0]), 1e-6)


def find_slowdown(run: RunProfile, blocks: Blocks) -> Iterator[Finding]:
    """Of the median rank's step time over the run."""
    num_steps = int(blocks.steps.sum())
    trend = _trend(*_median_rank(run)) if num_steps >= policy.SLOWDOWN_MIN_STEPS else None
    if trend is None or trend.growth < policy.SLOWDOWN_WARNING or trend.z < policy.SLOWDOWN_Z:
        return
    is_contended = _is_contended(run, trend.segments)
    phase = _growing_phase(blocks)
    start_ms, end_ms = float(trend.segments[0]), float(trend.segments[-1])
    evidence = [
        f"median step by eighths of the run: {', '.join(map(milliseconds, trend.segments))}",
        f"slope {milliseconds(trend.slope_ms)} a step (Theil-Sen), z {trend.z:.1f} (Mann-Kendall)",
    ]
    if is_contended:
        evidence.append("training threads had to wait for a core: the host is overcommitted, and that may be all")
    yield Finding(
        kind="SLOWDOWN",
        severity=_severity(trend, is_contended=is_contended),
        confidence=confidence(num_steps),
        summary=f"Steps became slower all along: {milliseconds(start_ms)} at the start, {milliseconds(end_ms)} at the "
        f"end; what grew is {phase}.",
        action="Look for what grows with the steps: a list that is searched, a history that is logged, a graph that is "
        "kept alive, fragmented memory, a device that gets hot.",
        ranks=tuple(rank.rank for rank in run.ranks),
        phase=phase,
        lost_share=round(max(0.0, 1.0 - start_ms / float(trend.segments.mean())), 4),
        evidence=tuple(evidence),
    )


def _severity(trend: _Trend, *, is_contended: bool) -> Severity:
    if trend.rise_ms < policy.SLOWDOWN_FLOOR_MS or is_contended:
        return "info"
    is_certain = trend.growth >= policy.SLOWDOWN_CRITICAL and trend.num_rises > policy.SLOWDOWN_RISES
    return "critical" if is_certain else "warning"


def _trend(steps: Floats, step_ms: Floats) -> _Trend | None:
    """Null where it is not gradual: it has to rise again and again, to its end."""
    if len(steps) < 2 * policy.SLOWDOWN_SEGMENTS:
        return None
    segments = np.array([np.median(part) for part in np.array_split(step_ms, policy.SLOWDOWN_SEGMENTS)])
    changes, whole = np.diff(segments), float(segments[-1] - segments[0])
    num_rises = int((changes >= 0.2 * whole / len(changes)).sum())
    is_spread = changes.max() <= policy.SLOWDOWN_LARGEST_RISE * whole and segments[-1] >= 0.85 * segments.max()
    if whole <= 0 or num_rises < policy.SLOWDOWN_RISES or not is_spread:
        return None
    x, y = thinned(steps, step_ms)
    slope = theil_sen(x, y)
    return _Trend(segments, slope, slope * float(x[-1] - x[0]), mann_kendall(y), num_rises)


def _median_rank(run: RunProfile) -> tuple[Floats, Floats]:
    """(steps, median over ranks of their median step) by cell."""
    medians: Floats = median(np.stack([rank.median_step_ms for rank in run.ranks]), axis=0)
    cells = np.flatnonzero(~np.isnan(medians))
    steps: Floats = cells.astype(np.float64) * run.steps_per_cell
    return steps, medians[cells]


def _growing_phase(blocks: Blocks) -> str:
    """The phase with most of the rise between the first and the last quarter, of the median rank."""
    quarter = max(1, blocks.num_blocks // 4)
    by_phase = median(blocks.phases[:, :WAITING], axis=0)
    rise = median(by_phase[:, -quarter:], axis=1) - median(by_phase[:, :quarter], axis=1)
    return OWN_PHASES[int(np.argmax(np.nan_to_num(rise)))]


def _is_contended(run: RunProfile, segments: Floats) -> bool:
    """Whether waiting for a core explains the growth, or is so common that nothing can be said of it."""
    halves = [rank.cpu_wait_halves for rank in run.ranks if rank.cpu_wait_halves is not None]
    if not halves:
        return False
    early, late = np.median(halves, axis=0).tolist()
    early_ms, late_ms = (float(part.mean()) for part in np.split(segments, 2))
    is_explained = late * late_ms - early * early_ms >= policy.CONTENTION_EXPLAINS * (late_ms - early_ms)
    return bool(is_explained or late >= policy.CONTENTION_SHARE)
