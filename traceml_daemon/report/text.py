"""`final_summary.txt` and `failure_report.txt`: one screen for a person, training's outcome first.

A failed run never reads like a verdict on its performance: what failed stands above everything that was measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from traceml_daemon.diagnosis.finding import Finding
from traceml_daemon.diagnosis.wording import ranks_text
from traceml_daemon.report.form import PHASE_NAMES, FailureReport, FinalSummary, PhaseTimes, StepTimeSection

MAX_LINES: Final = 6
_STEERING: Final = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_REASONS: Final = {
    "peer_lost": "lost a peer",
    "collective_timeout": "waited in vain for a collective",
    "sigterm_by_agent": "ended by SIGTERM",
    "sigkill_by_agent": "ended by SIGKILL",
    "aborted_by_watchdog": "aborted",
}


def harmless(text: str) -> str:
    """Without what steers a terminal: messages of a run are its own words, and not commands to a reader's screen."""
    return text.translate(_STEERING)


def failure_lines(report: FailureReport) -> tuple[str, ...]:
    """Who failed first and why, who is collateral, the next step: at most six lines without a prefix."""
    where = f"; {report.source}" if report.source is not None else ""
    lines = [f"{report.summary[:1].upper()}{report.summary[1:]}", f"Cause: {_cause(report)}{where}"]
    if report.collateral:
        lines.append(f"Collateral: {collateral_text(report)}")
    if report.torchrun.agrees is False:
        why = (report.torchrun.why or "").removeprefix("torchrun names ")
        lines.append(f"torchrun names rank {report.torchrun.root_cause_rank}: {why}")
    lines.append(f"Next: {report.next_step}")
    if report.command is not None:
        lines.append(f"  $ {report.command}")
    return tuple(harmless(line.replace("\n", " ")) for line in lines[:MAX_LINES])


def finding_lines(finding: Finding) -> tuple[str, ...]:
    """Why a run was slow, in two lines; none where nothing is worth a person's time."""
    if finding.severity == "info":
        return ()
    kind = f"{finding.kind} ({finding.severity}, confidence {finding.confidence})"
    return f"Diagnosis: {kind}: {finding.summary}", f"Try first: {finding.action}"


def failure_sentence(report: FailureReport) -> str:
    """For `training.failure_sentence` of the manifest."""
    return f"{report.summary} ({_cause(report)})"


def collateral_text(report: FailureReport) -> str:
    """`ranks 0-1 lost a peer; rank 3 ended by SIGTERM`: grouped by reason."""
    by_reason: dict[str, list[int]] = {}
    for collateral in report.collateral:
        by_reason.setdefault(collateral.reason, []).append(collateral.rank)
    return "; ".join(f"{ranks_text(ranks)} {_REASONS.get(reason, reason)}" for reason, ranks in by_reason.items())


def _cause(report: FailureReport) -> str:
    return f"{report.category}, confidence {report.confidence}"


_MAX_MISSING: Final = 8
"""Ranks that are listed one by one."""
_MAX_WARNINGS: Final = 5
_MAX_FINDINGS: Final = 3
_MAX_EVIDENCE: Final = 2
_WIDTH: Final = 100


def summary_text(summary: FinalSummary) -> str:
    sections = (
        outcome_lines(summary),
        map(_cut, failure_lines(summary.failure) if summary.failure is not None else ()),
        _history(summary),
        _diagnosis(summary),
        _ranks(summary),
        (*telemetry_lines(summary), *(_cut(f"  warning: {each}") for each in summary.warnings[:_MAX_WARNINGS])),
        _step_time(summary.step_time, has_failed=summary.training.status != "completed"),
        _resources(summary),
    )
    return harmless("\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n")


def failure_text(report: FailureReport) -> str:
    """The failure, its evidence, and what would settle what is not known."""
    lines = list(failure_lines(report))
    lines += [f"Family: {report.family}"]
    lines += [f"Evidence: {item.place}: {item.text}" for item in report.evidence if not item.contrast]
    lines += [f"{item.contrast}: {item.text} ({item.place})" for item in report.evidence if item.contrast]
    lines += [f"To verify: $ {report.verify_command}"] if report.verify_command is not None else []
    lines += [f"Not known: {fact.fact}; $ {fact.command}" for fact in report.missing]
    return harmless("\n".join(lines) + "\n")


def outcome_lines(summary: FinalSummary) -> Iterator[str]:
    """How training ended, which run that was, and the nodes whose end is known from others only."""
    training, topology = summary.training, summary.topology
    provisional = " (provisional: training was still ending)" if summary.provisional else ""
    yield f"TRAINING {training.status.upper()}{_ending(summary)}{provisional}"
    nodes = f"{topology.nnodes} node{'s' if topology.nnodes != 1 else ''}"
    ranks = f"{topology.world_size} rank{'s' if topology.world_size != 1 else ''}"
    yield f"Run {summary.run_name}: {ranks} on {nodes}{_duration(summary)}"
    for node in training.nodes:
        if node.why is not None:
            yield f"Node {node.node_rank}: {node.why}"


def _ending(summary: FinalSummary) -> str:
    training = summary.training
    if training.signal is not None:
        return f": torchrun was ended by {training.signal}"
    return f" with exit code {training.exit_code}" if training.exit_code is not None else ""


def _duration(summary: FinalSummary) -> str:
    training = summary.training
    if training.started_at is None or training.ended_at is None:
        return ""
    started, ended = (datetime.fromisoformat(time) for time in (training.started_at, training.ended_at))
    return f", {(ended - started).total_seconds():.1f} s"


def _history(summary: FinalSummary) -> Iterator[str]:
    for report in summary.failure_history:
        what = "Before a restart" if summary.failure is not None else "Recovered by a restart"
        yield _cut(f"{what}: {report.summary} ({report.category}, {report.confidence})")


def _diagnosis(summary: FinalSummary) -> Iterator[str]:
    """Of a failed run only what may have to do with its end."""
    if summary.failure is not None:
        for finding in summary.findings[:_MAX_FINDINGS]:
            yield _cut(f"Seen before the end: {finding.summary}")
        return
    first, *others = summary.findings
    yield f"Diagnosis: {first.kind} ({first.severity}, confidence {first.confidence})"
    yield from _wrapped(first.summary)
    for line in first.evidence[:_MAX_EVIDENCE]:
        yield from _wrapped(f"({line})")
    yield from _wrapped(f"Try first: {first.action}")
    for finding in others[:_MAX_FINDINGS]:
        yield from _wrapped(f"Also {finding.kind} ({finding.severity}): {finding.summary}")


def _ranks(summary: FinalSummary) -> Iterator[str]:
    telemetry = summary.telemetry
    missing = telemetry.ranks_missing
    seen = len(summary.ranks)
    yield (
        f"Ranks: {telemetry.ranks_expected} expected, {seen} seen, {len(telemetry.ranks_finished)} finished,"
        f" {len(missing)} missing"
    )
    for rank in missing[:_MAX_MISSING]:
        last_seen = f", last seen {rank.last_seen_at}" if rank.last_seen_at is not None else ""
        yield _cut(f"  rank {rank.rank} missing: {rank.why} (last step {rank.last_step}{last_seen})")
    if len(missing) > _MAX_MISSING:
        yield f"  and {ranks_text(rank.rank for rank in missing[_MAX_MISSING:])}"
    yield from _earlier_attempts(summary)


def _earlier_attempts(summary: FinalSummary) -> Iterator[str]:
    """The figures below are of the last attempts; why there were others."""
    earlier = [(section.rank, attempt) for section in summary.ranks for attempt in section.attempts[:-1]]
    for rank, attempt in earlier[:_MAX_MISSING]:
        why = attempt.why or "its end was not seen"
        yield _cut(f"  rank {rank} attempt {attempt.attempt}: {why} (last step {attempt.last_step})")
    if len(earlier) > _MAX_MISSING:
        yield f"  and {len(earlier) - _MAX_MISSING} more earlier attempts"


def telemetry_lines(summary: FinalSummary) -> Iterator[str]:
    """Its health, and what became of every record."""
    telemetry, records = summary.telemetry, summary.telemetry.records
    reason = f" ({telemetry.reason})" if telemetry.reason is not None else ""
    yield f"Telemetry: {telemetry.status}{reason}{'' if telemetry.authenticated else ', not authenticated'}"
    yield (
        f"  step records: {records.received} received, {records.stored} stored, {records.salvaged} salvaged,"
        f" {records.dropped} dropped; samples dropped: {records.samples_dropped}"
    )
    if telemetry.frames_rejected:
        yield f"  frames rejected: {telemetry.frames_rejected}"


def _step_time(section: StepTimeSection, *, has_failed: bool) -> Iterator[str]:
    yield step_caption(section, has_failed=has_failed)
    if section.window.steps == 0:
        return
    yield f"  {'phase':<12}{'p50 ms':>11}{'p95 ms':>11}{'p99 ms':>11}{'mean ms':>11}{'share':>9}"
    for name in PHASE_NAMES:
        times = section.phases[name]
        yield f"  {name:<12}" + (_row(times) if times is not None else f"  {section.reasons.get(name, '')}"[:_WIDTH])
    if section.throughput_steps_per_s is not None:
        yield f"  throughput: {section.throughput_steps_per_s:.4g} steps/s"


def step_caption(section: StepTimeSection, *, has_failed: bool) -> str:
    """Which steps the figures are of, or why there are none."""
    window = section.window
    if window.steps == 0:
        return f"Steps: none measured; {section.reasons.get('step', '')}"
    caption = "Steps before the end, no verdict on performance" if has_failed else "Steps"
    return (
        f"{caption}: {window.first_step} to {window.last_step}"
        f" ({window.warmup} warm-up and {window.skipped} skipped left out)"
    )


def _row(times: PhaseTimes) -> str:
    columns = (times.p50_ms, times.p95_ms, times.p99_ms, times.mean_ms)
    return "".join(f"{value:>11.3f}" for value in columns) + f"{times.share:>9.1%}"


def _resources(summary: FinalSummary) -> Iterator[str]:
    memory, process, system = summary.memory.overall, summary.process.overall, summary.system.overall
    if memory.peak_rss_bytes is not None:
        yield f"Memory: peak RSS {size_text(memory.peak_rss_bytes)} on rank {memory.peak_rss_rank}"
    if memory.peak_allocated_bytes is not None:
        size = size_text(memory.peak_allocated_bytes)
        yield f"Device memory: peak {size} allocated on rank {memory.peak_allocated_rank}"
    if process.cpu_percent is not None:
        yield f"CPU: {process.cpu_percent:.0f}% of a core, all ranks together"
    if system.max_memory_used_share is not None:
        yield f"Host memory: at most {system.max_memory_used_share:.0%} of a node used"


def size_text(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH + 10, initial_indent="  ", subsequent_indent="    ")


def _cut(line: str) -> str:
    return line if len(line) <= 2 * _WIDTH else line[: 2 * _WIDTH - 3] + "..."
