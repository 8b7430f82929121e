"""A comparison for a person: the verdict and why, then the figures; and many runs as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from traceml_client.protocol.errors import StoreError
from traceml_daemon.report.compare_form import (
    Basis,
    ComparedRun,
    Comparison,
    Interval,
    PhaseChange,
    RunRow,
    RunTable,
    Verdict,
)
from traceml_daemon.report.form import PHASE_NAMES
from traceml_daemon.report.saved import SavedRun, read_run

MIN_STEPS: Final = 30
"""Seven stretches of four steps; below, an interval says more about luck than about the run."""
_MANY_PCT: Final = 900.0
_BASIS: Final[dict[Basis, str]] = {"median": "median", "mean": "mean", "quiet": "fastest twentieth"}


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


def why(
    verdict: Verdict, step: PhaseChange, phases: Sequence[PhaseChange], margin_pct: float, disturbed: Sequence[str]
) -> str:
    """One sentence. `disturbed`: the runs, A or B, of which the machine left no step alone."""
    if step.change_pct is None or step.interval_pct is None:
        return "no step time that both runs measured"
    moved = f"the median step changed by {step.change_pct:+.1f} % ({interval_text(step.interval_pct)})"
    if verdict != "inconclusive":
        reason = {"median": moved, "mean": _by_mean(step, margin_pct), "quiet": _by_quiet(step)}[step.judged_by]
        return reason + (f"; less than {margin_pct:g} % is no change" if verdict == "same" else _where(step, phases))
    if disturbed:
        which = "both runs" if len(disturbed) == 2 else f"run {disturbed[0]}"
        return f"{moved}, but {which} had slow stretches in all phases alike and hardly an undisturbed step: repeat it"
    if abs(step.change_pct) < margin_pct:
        return f"{moved}: a change of more than {margin_pct:g} % may hide in that noise; more steps would tell"
    if step.interval_pct[0] <= 0 <= step.interval_pct[1]:
        return f"{moved}: that may be noise; more steps or quieter machines would tell"
    return f"{moved}, but the mean moved the other way"


def _by_quiet(step: PhaseChange) -> str:
    if step.quiet is None or step.quiet.interval_pct is None:
        return ""
    return (
        f"the fastest twentieth of the steps changed by {step.quiet.change_pct:+.1f} % "
        f"({interval_text(step.quiet.interval_pct)}), the median by {step.change_pct:+.1f} %: slow stretches were slow "
        f"in all phases alike, as on a machine that others use too"
    )


def _by_mean(step: PhaseChange, margin_pct: float) -> str:
    if step.interval_pct is None or step.mean is None or step.mean.interval_pct is None:
        return ""
    mean = f"the mean by {step.mean.change_pct:+.1f} % ({interval_text(step.mean.interval_pct)})"
    if max(map(abs, step.interval_pct)) < 2 * margin_pct:
        return f"the median step changed by {step.change_pct:+.1f} %, but {mean}: slow steps have become more or fewer"
    return f"the median step is unsteady, it changed by {step.change_pct:+.1f} %; {mean}"


def _where(step: PhaseChange, phases: Sequence[PhaseChange]) -> str:
    """The phase that moved most in the step's own direction, by the figure that the verdict is of."""
    basis = step.judged_by
    total_ms = _moved_ms(step, basis) or 0.0
    moved = [(moved_ms, phase.phase) for phase in phases if (moved_ms := _moved_ms(phase, basis)) is not None]
    most_ms, name = max(moved, key=lambda each: each[0] * total_ms, default=(0.0, ""))
    if most_ms * total_ms <= 0:
        return ""
    return f"; most of it in {name}, whose {_BASIS[basis]} changed by {most_ms:+.3f} ms (the step's by {total_ms:+.3f})"


def _moved_ms(phase: PhaseChange, basis: Basis) -> float | None:
    if basis == "mean":
        return None if phase.mean is None else phase.mean.b_mean_ms - phase.mean.a_mean_ms
    if basis == "quiet":
        return None if phase.quiet is None else phase.quiet.b_p5_ms - phase.quiet.a_p5_ms
    return None if phase.a_p50_ms is None or phase.b_p50_ms is None else phase.b_p50_ms - phase.a_p50_ms


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
        words = {"failed": "failed", "interrupted": "was interrupted"}
        yield f"{label} ({run.run_name}) {words.get(run.training.status, f'is {run.training.status}')}"
    if run.provisional:
        yield f"{label} ({run.run_name}) was still ending when its summary was written"
    if run.telemetry.records.dropped:
        yield f"{label} ({run.run_name}) lacks {run.telemetry.records.dropped} step records, which were dropped"
    if run.failure_history:
        yield f"{label} ({run.run_name}) was restarted; the last attempt of each rank is compared"


def interval_text(interval: Interval) -> str:
    return f"95 % interval {_interval(interval)}"


def comparison_text(comparison: Comparison) -> str:
    sections = (
        [f"{comparison.verdict.upper()}: {comparison.why}"],
        [_run("A", comparison.a), _run("B", comparison.b)],
        [f"Warning: {warning}" for warning in comparison.warnings],
        list(_figures(comparison)),
        list(_findings(comparison)),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _run(label: str, run: ComparedRun) -> str:
    ranks = "1 rank" if run.ranks == 1 else f"{run.ranks} ranks"
    return f"{label}: {run.run_name}, {run.status}, {ranks}, {run.steps} steps after warm-up"


def _figures(comparison: Comparison) -> Iterator[str]:
    yield (
        f"{'phase':<12}{'A p50 ms':>10}{'B p50 ms':>10}{'change':>9}  {'95 % interval':<19}"
        f"{'A p95 ms':>10}{'B p95 ms':>10}{'change':>9}  verdict"
    )
    for phase in (*comparison.phases, comparison.step_time):
        yield _row(phase)


def _row(phase: PhaseChange) -> str:
    if phase.tail is None:
        measured = "neither run" if phase.a_p50_ms is phase.b_p50_ms else "one of the runs only"
        return f"{phase.phase:<12}  measured in {measured}"
    return (
        f"{phase.phase:<12}{phase.a_p50_ms:>10.3f}{phase.b_p50_ms:>10.3f}{_percent(phase.change_pct)}"
        f"  {_interval(phase.interval_pct):<19}"
        f"{phase.tail.a_p95_ms:>10.3f}{phase.tail.b_p95_ms:>10.3f}{_percent(phase.tail.change_pct)}  {phase.verdict}"
    )


def _percent(change_pct: float | None) -> str:
    return f"{'-':>9}" if change_pct is None else f"{_times(change_pct):>9}"


def _times(change_pct: float) -> str:
    """`+9.8 %`, and from ten times on `x 398`: nobody reads thousands of per cent."""
    return f"x {1 + change_pct / 100:.0f}" if change_pct >= _MANY_PCT else f"{change_pct:+.1f} %"


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    low, high = map(_times, interval)
    return f"{low.removesuffix(' %')} to {high}"


def _findings(comparison: Comparison) -> Iterator[str]:
    for label, findings in (("A", comparison.findings.a), ("B", comparison.findings.b)):
        for finding in findings[:3]:
            yield f"{label}: {finding.kind} ({finding.severity}, confidence {finding.confidence}): {finding.summary}"


def run_table(run_dirs: list[Path]) -> RunTable:
    """A row for each run with a summary; the others are named in the warnings. Blocks."""
    rows, warnings = [], []
    for run_dir in run_dirs:
        try:
            rows.append(_table_row(read_run(run_dir)))
        except StoreError as error:
            warnings.append(str(error))
    return RunTable(runs=tuple(rows), warnings=tuple(warnings))


def _table_row(summary: SavedRun) -> RunRow:
    section = summary.step_time
    step = section.phases.get("step")
    shares = {name: times.share for name in PHASE_NAMES[:-1] if (times := section.phases.get(name)) is not None}
    largest = max(shares, key=lambda name: shares[name], default=None)
    return RunRow(
        run_name=summary.run_name,
        status=summary.training.status,
        ranks=len(summary.ranks),
        steps=section.window.steps,
        p50_ms=None if step is None else step.p50_ms,
        p95_ms=None if step is None else step.p95_ms,
        throughput_steps_per_s=section.throughput_steps_per_s,
        largest_phase=largest,
        largest_share=None if largest is None else shares[largest],
        diagnosis=summary.failure.category if summary.failure is not None else summary.primary_diagnosis.kind,
    )


def table_text(table: RunTable) -> str:
    width = max([len(row.run_name) for row in table.runs] + [3])
    lines = [
        f"{'run':<{width}}  {'status':<12}{'ranks':>6}{'steps':>8}{'p50 ms':>11}{'p95 ms':>11}{'steps/s':>10}"
        f"  {'largest phase':<18}diagnosis"
    ]
    lines += [_line(row, width) for row in table.runs]
    lines += [f"Warning: {warning}" for warning in table.warnings]
    return "\n".join(lines) + "\n"


def _line(row: RunRow, width: int) -> str:
    largest = "-" if row.largest_phase is None else f"{row.largest_phase} {row.largest_share:.0%}"
    return (
        f"{row.run_name:<{width}}  {row.status:<12}{row.ranks:>6}{row.steps:>8}{_number(row.p50_ms):>11}"
        f"{_number(row.p95_ms):>11}{_number(row.throughput_steps_per_s):>10}  {largest:<18}{row.diagnosis}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
