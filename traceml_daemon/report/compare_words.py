"""The sentences of a comparison: why there is no verdict, why it is what it is, and what to keep in mind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from traceml_daemon.report.compare_form import Interval, PhaseChange, Verdict
from traceml_daemon.report.saved import SavedRun

MIN_STEPS: Final = 30
"""Seven stretches of four steps; below, an interval says more about luck than about the run."""


def refusal(a: SavedRun, b: SavedRun) -> str | None:
    """Why these two cannot be judged, however clear their figures look."""
    for label, run in (("A", a), ("B", b)):
        if run.training.status == "failed":
            cause = f": {run.failure.summary}" if run.failure is not None else ""
            return f"run {label} ({run.run_name}) failed{cause}; its steps before that are no measure of speed"
    for label, run in (("A", a), ("B", b)):
        steps = run.step_time.window.steps
        if steps < MIN_STEPS:
            return f"run {label} ({run.run_name}) has {steps} steps after warm-up; {MIN_STEPS} is the least"
    if a.step_time.clock != b.step_time.clock:
        return f"A was timed by the clock of the {a.step_time.clock} and B by that of the {b.step_time.clock}"
    return None


def why(verdict: Verdict, step: PhaseChange, phases: Sequence[PhaseChange], margin_pct: float) -> str:
    """One sentence. `step` was measured in both runs."""
    if step.change_pct is None or step.interval_pct is None:
        return "no step time that both runs measured"
    moved = f"the median step changed by {step.change_pct:+.1f} % ({interval_text(step.interval_pct)})"
    if verdict != "inconclusive":
        reason = moved if step.judged_by == "median" else _by_mean(step, margin_pct)
        return reason + (f"; less than {margin_pct:g} % is no change" if verdict == "same" else _where(step, phases))
    if abs(step.change_pct) < margin_pct:
        return f"{moved}: a change of more than {margin_pct:g} % may hide in that noise; more steps would tell"
    if step.interval_pct[0] <= 0 <= step.interval_pct[1]:
        return f"{moved}: that may be noise; more steps or quieter machines would tell"
    return f"{moved}, but the mean moved the other way"


def _by_mean(step: PhaseChange, margin_pct: float) -> str:
    assert step.change_pct is not None
    assert step.interval_pct is not None
    assert step.mean is not None
    assert step.mean.interval_pct is not None
    mean = f"the mean by {step.mean.change_pct:+.1f} % ({interval_text(step.mean.interval_pct)})"
    if max(map(abs, step.interval_pct)) < 2 * margin_pct:
        return f"the median step changed by {step.change_pct:+.1f} %, but {mean}: slow steps have become more or fewer"
    return f"the median step is unsteady, it changed by {step.change_pct:+.1f} %; {mean}"


def _where(step: PhaseChange, phases: Sequence[PhaseChange]) -> str:
    """The phase that moved most in the step's own direction."""
    if step.mean is None:
        return ""
    total_ms = step.mean.b_mean_ms - step.mean.a_mean_ms
    moved = [(p.mean.b_mean_ms - p.mean.a_mean_ms, p.phase) for p in phases if p.mean is not None]
    if not moved or total_ms == 0:
        return ""
    most_ms, name = max(moved, key=lambda each: each[0] * total_ms)
    if most_ms * total_ms <= 0:
        return ""
    return f"; most of it in {name}, whose mean changed by {most_ms:+.3f} ms (the step's by {total_ms:+.3f})"


def caveats(a: SavedRun, b: SavedRun) -> Iterator[str]:
    """What a reader must know beside the figures."""
    if a.run_id == b.run_id:
        yield "A and B are the same run"
    for label, run in (("A", a), ("B", b)):
        yield from _caveats_of(label, run)
    if len(a.ranks) != len(b.ranks):
        yield f"A has {len(a.ranks)} ranks and B {len(b.ranks)}: a step is not the same amount of work"
    if a.topology.nnodes != b.topology.nnodes:
        yield f"A ran on {a.topology.nnodes} nodes and B on {b.topology.nnodes}"


def _caveats_of(label: str, run: SavedRun) -> Iterator[str]:
    if run.training.status != "completed":
        cause = f": {run.failure.summary}" if run.failure is not None else ""
        yield f"{label} ({run.run_name}) was not completed, it is {run.training.status}{cause}"
    if run.provisional:
        yield f"{label} ({run.run_name}) was still ending when its summary was written"
    if run.telemetry.records.dropped:
        yield f"{label} ({run.run_name}) lacks {run.telemetry.records.dropped} step records, which were dropped"
    if run.failure_history:
        yield f"{label} ({run.run_name}) was restarted; the last attempt of each rank is compared"


def interval_text(interval: Interval) -> str:
    return f"95 % interval {interval[0]:+.1f} to {interval[1]:+.1f} %"
