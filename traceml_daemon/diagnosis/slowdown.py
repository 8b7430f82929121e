"""Steps that take longer and longer: a trend that is significant, large and gradual."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.finding import Finding, Severity
from traceml_daemon.diagnosis.profile import OWN_PHASES, WAITING, Floats, RunProfile
from traceml_daemon.diagnosis.robust import Blocks, mann_kendall, median, theil_sen, thinned
from traceml_daemon.diagnosis.wording import confidence, milliseconds


def find_slowdown(run: RunProfile, blocks: Blocks) -> Iterator[Finding]:
    """Of the median rank's step time over the run."""
    steps, step_ms = _median_rank(run)
    num_steps = int(blocks.steps.sum())
    if num_steps < policy.SLOWDOWN_MIN_STEPS or len(steps) < 2 * policy.SLOWDOWN_SEGMENTS:
        return
    segments = np.array([np.median(part) for part in np.array_split(step_ms, policy.SLOWDOWN_SEGMENTS)])
    x, y = thinned(steps, step_ms)
    slope = theil_sen(x, y)
    rise_ms = slope * (x[-1] - x[0])
    start_ms = max(float(np.median(y) - rise_ms / 2), float(segments[0]), 1e-6)
    z = mann_kendall(y)
    growth = rise_ms / start_ms
    is_gradual, num_rises = _is_gradual(segments)
    if growth < policy.SLOWDOWN_WARNING or z < policy.SLOWDOWN_Z or not is_gradual:
        return
    contention = _contention(run)
    severity: Severity = "warning"
    if growth >= policy.SLOWDOWN_CRITICAL and num_rises > policy.SLOWDOWN_RISES:
        severity = "critical"
    if rise_ms < policy.SLOWDOWN_FLOOR_MS or contention >= policy.CONTENTION_SHARE:
        severity = "info"
    phase = _growing_phase(blocks)
    evidence = [
        f"median step by eighths of the run: {', '.join(map(milliseconds, segments))}",
        f"slope {1000 * slope:.3g} us a step (Theil-Sen), z {z:.1f} (Mann-Kendall)",
    ]
    if contention >= policy.CONTENTION_SHARE:
        evidence.append(f"training threads had no core for {contention:.0%} of the time: the host is overcommitted")
    yield Finding(
        kind="SLOWDOWN",
        severity=severity,
        confidence=confidence(num_steps),
        summary=f"Steps became slower all along: {milliseconds(segments[0])} at the start, "
        f"{milliseconds(segments[-1])} at the end; what grew is {phase}.",
        action="Look for what grows with the steps: a list that is searched, a history that is logged, a graph "
        "that is kept alive, fragmented memory, a device that gets hot.",
        ranks=tuple(rank.rank for rank in run.ranks),
        phase=phase,
        lost_share=round(float(max(0.0, 1.0 - segments[0] / np.mean(segments))), 4),
        evidence=tuple(evidence),
    )


def _median_rank(run: RunProfile) -> tuple[Floats, Floats]:
    """(steps, median over ranks of their median step) by cell."""
    medians: Floats = median(np.stack([rank.median_step_ms for rank in run.ranks]), axis=0)
    cells = np.flatnonzero(~np.isnan(medians))
    steps: Floats = cells.astype(np.float64) * run.steps_per_cell
    return steps, medians[cells]


def _is_gradual(segments: Floats) -> tuple[bool, int]:
    """Whether it rises again and again, to its end; and in how many of the changes."""
    changes = np.diff(segments)
    whole = float(segments[-1] - segments[0])
    if whole <= 0:
        return False, 0
    num_rises = int((changes >= 0.2 * whole / len(changes)).sum())
    is_spread = changes.max() <= policy.SLOWDOWN_LARGEST_RISE * whole
    return bool(num_rises >= policy.SLOWDOWN_RISES and is_spread and segments[-1] >= 0.85 * segments.max()), num_rises


def _growing_phase(blocks: Blocks) -> str:
    """The phase with most of the rise between the first and the last quarter, over all ranks."""
    quarter = max(1, blocks.num_blocks // 4)
    by_phase = np.nanmean(blocks.phases[:, :WAITING], axis=0)
    return OWN_PHASES[int(np.argmax(by_phase[:, -quarter:].mean(axis=1) - by_phase[:, :quarter].mean(axis=1)))]


def _contention(run: RunProfile) -> float:
    shares = [rank.cpu_wait_share for rank in run.ranks if rank.cpu_wait_share is not None]
    return float(np.median(shares)) if shares else 0.0
