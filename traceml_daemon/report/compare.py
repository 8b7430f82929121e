"""Two runs, or many: what changed from A to B, how sure that is, and whether it is more than the noise.

The verdict is of the step's median. The mean is asked too: a step that is rarely but much slower leaves the median
alone, and where steps are of two kinds the median jumps between them. Where the machine was used by others meanwhile,
it is of the fastest twentieth of the steps. A run that failed gets figures and no verdict.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from traceml_client.protocol.launch import DATABASE_FILE
from traceml_daemon.report import bootstrap
from traceml_daemon.report import compare_form as form
from traceml_daemon.report.bootstrap import PhaseSpreads, Spread, read_stretches
from traceml_daemon.report.compare_form import PhaseChange, Verdict
from traceml_daemon.report.compare_text import caveats, refusal, why
from traceml_daemon.report.form import PHASE_NAMES, PhaseTimes
from traceml_daemon.report.machine_noise import is_disturbed_throughout, is_the_machines
from traceml_daemon.report.measurements import Measurements
from traceml_daemon.report.saved import SavedRun, read_run

MARGIN_PCT: Final = 5.0
"""Half of the 10 % that must be found. Runs of one script on one machine differ by 1 to 3 % by themselves."""
_DECISIVE: Final = 2.0
"""`same` needs an interval within this many margins: wider, and a change that matters may hide in it."""
_MATTERS: Final = 0.01
"""A phase whose change is less than this share of the step is `same`, whatever that is of the phase."""


class _Noise(NamedTuple):
    spreads: dict[str, PhaseSpreads]
    """By phase; empty where a run was kept without its single steps."""
    is_the_machines: bool = False
    disturbed: tuple[str, ...] = ()
    """The runs that the machine disturbed so much that nothing can be said of them."""
    why_unknown: str | None = None


class _Change(NamedTuple):
    change_pct: float | None
    interval_pct: form.Interval | None


def compare(dir_a: Path, dir_b: Path, *, margin_pct: float = MARGIN_PCT) -> form.Comparison:
    """Blocks.

    Raises:
        StoreError: a run has no readable final_summary.json, or its database is damaged.
    """
    a, b = read_run(dir_a), read_run(dir_b)
    noise = _noise(dir_a, dir_b, a, b)
    changes = [_phase_change(name, a, b, noise, margin_pct) for name in PHASE_NAMES]
    reason = refusal(a, b) or noise.why_unknown
    if reason is not None:
        changes = [msgspec.structs.replace(change, verdict="inconclusive") for change in changes]
    step = changes[-1]
    return form.Comparison(
        verdict=step.verdict,
        why=reason or why(step.verdict, step, changes[:-1], margin_pct, noise.disturbed),
        margin_pct=margin_pct,
        a=_compared(a),
        b=_compared(b),
        step_time=step,
        phases=tuple(changes[:-1]),
        findings=form.ComparedFindings(*(run.findings or (run.primary_diagnosis,) for run in (a, b))),
        warnings=tuple(caveats(a, b)),
    )


def _noise(dir_a: Path, dir_b: Path, a: SavedRun, b: SavedRun) -> _Noise:
    databases = [folder / DATABASE_FILE for folder in (dir_a, dir_b)]
    for database in databases:
        if not database.is_file():
            return _Noise({}, why_unknown=f"{database} is missing: without single steps noise and change look alike")
    with Measurements(databases[0]) as of_a, Measurements(databases[1]) as of_b:
        cells_a, cells_b = read_stretches(of_a, a), read_stretches(of_b, b)
    draws = bootstrap.Draws(cells_a, cells_b)
    spreads = {name: bootstrap.spreads(cells_a, cells_b, draws, name) for name in PHASE_NAMES}
    disturbed = tuple(
        label for label, run in zip("AB", (cells_a, cells_b), strict=True) if is_disturbed_throughout(run)
    )
    return _Noise(spreads, is_the_machines(cells_a, cells_b), disturbed)


def _phase_change(name: str, a: SavedRun, b: SavedRun, noise: _Noise, margin_pct: float) -> PhaseChange:
    in_a, in_b = a.step_time.phases.get(name), b.step_time.phases.get(name)
    if in_a is None or in_b is None:
        return PhaseChange(
            phase=name,
            verdict="inconclusive",
            a_p50_ms=None if in_a is None else in_a.p50_ms,
            b_p50_ms=None if in_b is None else in_b.p50_ms,
        )
    spread = noise.spreads.get(name, PhaseSpreads())
    quiet_ms = round(spread.quiet_ns[0] / 1e6, 6), round(spread.quiet_ns[1] / 1e6, 6)
    median = _change(in_a.p50_ms, in_b.p50_ms, spread.median)
    mean = _change(in_a.mean_ms, in_b.mean_ms, spread.mean)
    quiet = _change(*quiet_ms, spread.quiet)
    verdict, judged_by = judge(median, mean, quiet if noise.is_the_machines else None, margin_pct)
    if noise.disturbed and verdict != "same":
        verdict, judged_by = "inconclusive", "median"
    return PhaseChange(
        phase=name,
        verdict=_phase_verdict(in_a, in_b, a.step_time.phases.get("step"), verdict),
        judged_by=judged_by,
        a_p50_ms=in_a.p50_ms,
        b_p50_ms=in_b.p50_ms,
        change_pct=median.change_pct,
        interval_pct=median.interval_pct,
        tail=form.TailChange(in_a.p95_ms, in_b.p95_ms, *_change(in_a.p95_ms, in_b.p95_ms, spread.tail)),
        mean=form.MeanChange(in_a.mean_ms, in_b.mean_ms, *mean),
        quiet=form.QuietChange(*quiet_ms, *quiet) if noise.spreads else None,
    )


def _phase_verdict(a: PhaseTimes, b: PhaseTimes, step: PhaseTimes | None, verdict: Verdict) -> Verdict:
    """A change of next to nothing is none, however large a share of the phase it is."""
    if step is None:
        return verdict
    largest_ms = max(abs(b.p50_ms - a.p50_ms), abs(b.mean_ms - a.mean_ms))
    return "same" if largest_ms < _MATTERS * step.p50_ms else verdict


def judge(median: _Change, mean: _Change, quiet: _Change | None, margin_pct: float) -> tuple[Verdict, form.Basis]:
    """By the median; by the mean where that is clear and the median is not, or feels nothing.

    `quiet`: where the machine disturbed the runs, and that goes first.
    """
    if quiet is not None and (by_quiet := _judge(quiet, margin_pct)) != "inconclusive":
        return by_quiet, "quiet"
    by_median, by_mean = _judge(median, margin_pct), _judge(mean, margin_pct)
    if {by_median, by_mean} == {"better", "worse"}:
        return "inconclusive", "median"
    if by_median == "inconclusive" and by_mean != "inconclusive":
        return by_mean, "mean"
    if by_median == "same" and _is_beyond(mean, margin_pct):
        return by_mean, "mean"
    return by_median, "median"


def _judge(change: _Change, margin_pct: float) -> Verdict:
    if change.change_pct is None or change.interval_pct is None:
        return "inconclusive"
    low, high = change.interval_pct
    if change.change_pct >= margin_pct and low > 0:
        return "worse"
    if change.change_pct <= -margin_pct and high < 0:
        return "better"
    is_narrow = low > -_DECISIVE * margin_pct and high < _DECISIVE * margin_pct
    return "same" if abs(change.change_pct) < margin_pct and is_narrow else "inconclusive"


def _is_beyond(change: _Change, margin_pct: float) -> bool:
    """The whole interval: a few outliers move a mean far, so against a calm median it has to be sure."""
    return change.interval_pct is not None and (
        change.interval_pct[0] > margin_pct or change.interval_pct[1] < -margin_pct
    )


def _change(a_ms: float, b_ms: float, spread: Spread | None) -> _Change:
    if a_ms <= 0 or b_ms < 0:
        return _Change(0.0 if a_ms == b_ms else None, None)
    change_pct = round(100 * (b_ms / a_ms - 1), 3)
    if spread is None or b_ms == 0:
        return _Change(change_pct, None)
    log = math.log(b_ms / a_ms)
    return _Change(change_pct, (_percent(log - spread[0]), _percent(log + spread[1])))


def _percent(log: float) -> float:
    return round(100 * math.expm1(min(log, 100.0)), 3)


def _compared(summary: SavedRun) -> form.ComparedRun:
    status, section = summary.training.status, summary.step_time
    steps = section.window.steps
    return form.ComparedRun(summary.run_name, summary.run_id, status, len(summary.ranks), steps, section.clock)
