"""A comparison for a person: the verdict first, then the figures; and many runs as a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from traceml_client.protocol.errors import StoreError
from traceml_daemon.report.compare_form import ComparedRun, Comparison, Interval, PhaseChange, RunRow, RunTable
from traceml_daemon.report.form import PHASE_NAMES
from traceml_daemon.report.saved import SavedRun, read_run


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
    return f"{'-':>9}" if change_pct is None else f"{change_pct:>+7.1f} %"


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f} %"


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
