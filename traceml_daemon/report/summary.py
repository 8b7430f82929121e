"""Facts and measurements to the content of `final_summary.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from traceml_client.protocol.manifest import rfc3339
from traceml_client.protocol.node import RankEnd
from traceml_daemon.core.events import Incarnation
from traceml_daemon.diagnosis.finding import Finding
from traceml_daemon.diagnosis.verdict import about_memory, diagnose, undiagnosed
from traceml_daemon.report.facts import AttemptFacts, RunFacts, by_rank, ending_text, ends_of
from traceml_daemon.report.form import (
    AttemptSection,
    FailureReport,
    FinalSummary,
    RankSection,
    TrainingSection,
)
from traceml_daemon.report.measurements import Measurements
from traceml_daemon.report.reading import Reading
from traceml_daemon.report.samples import memory_section, process_section, system_section
from traceml_daemon.report.statistics import AttemptSteps, step_time_section


def build_summary(
    database: Path, facts: RunFacts, failure: FailureReport | None, history: tuple[FailureReport, ...] = ()
) -> FinalSummary:
    """Read the database and put everything together. Blocks.

    Raises:
        StoreError: the database cannot be read; the text names it.
    """
    attempts = by_rank(facts.attempts)
    with Measurements(database) as measurements:
        reading = Reading(measurements, attempts, facts)
    notes = dict.fromkeys(note for attempt in facts.attempts for note in attempt.notes)
    findings = _findings(facts, reading, failure)
    return FinalSummary(
        run_name=facts.run_name,
        run_id=facts.run_id,
        generated_at=rfc3339(facts.generated_ns),
        provisional=facts.is_provisional,
        topology=facts.topology,
        training=_training(facts),
        telemetry=facts.telemetry,
        warnings=facts.warnings,
        ranks=tuple(_ranks(attempts, reading.steps, ends_of(facts.node_reports))),
        step_time=step_time_section(reading.overall, reading.last_steps, notes),
        memory=memory_section(tuple(reading.memory)),
        process=process_section(tuple(reading.process)),
        system=system_section(tuple(reading.system[index] for index in sorted(reading.system))),
        series=reading.series(),
        primary_diagnosis=findings[0],
        findings=findings if failure is None else findings[1:],
        failure=failure,
        failure_history=history,
    )


def _training(facts: RunFacts) -> TrainingSection:
    started_at = _time(facts.training_started_ns) or rfc3339(facts.started_ns)
    ended_at = _time(facts.training_ended_ns)
    return TrainingSection(facts.status, facts.exit_code, facts.signal, started_at, ended_at, facts.nodes)


def _ranks(
    attempts: Mapping[int, tuple[AttemptFacts, ...]],
    steps: Mapping[Incarnation, AttemptSteps],
    ends: Mapping[Incarnation, RankEnd],
) -> Iterator[RankSection]:
    for rank, ordered in attempts.items():
        places = ((number, attempt, attempt.incarnation) for number, attempt in enumerate(ordered))
        yield RankSection(rank, tuple(_attempt(number, each, steps[of], ends.get(of)) for number, each, of in places))


def _attempt(number: int, attempt: AttemptFacts, steps: AttemptSteps, end: RankEnd | None) -> AttemptSection:
    node_index, local_rank, slot_attempt = attempt.incarnation
    return AttemptSection(
        attempt=number,
        slot_attempt=slot_attempt,
        node_rank=node_index,
        local_rank=local_rank,
        host=attempt.place.host,
        torch_restart_count=attempt.place.torch_restart_count,
        steps=steps.num_completed,
        skipped=steps.num_skipped,
        last_step=steps.last_step,
        state=attempt.state,
        first_at=_time(attempt.first_at_ns),
        last_at=_time(attempt.last_at_ns),
        exit_code=attempt.exit_code,
        why=ending_text(attempt, end),
        records=attempt.records,
        notes=attempt.notes,
    )


def _findings(facts: RunFacts, reading: Reading, failure: FailureReport | None) -> tuple[Finding, ...]:
    """Strongest first. Of a failed run only what may have to do with its end: the rest would read like a verdict."""
    try:
        findings = diagnose(reading.profile(has_accelerator=any(rank.devices for rank in reading.memory)))
    except Exception as error:  # noqa: BLE001 - a boundary: our error in the diagnosis must not cost the report
        findings = (undiagnosed(f"{type(error).__name__}: {error}"),)
    if failure is None:
        return findings
    kept = findings if facts.status == "interrupted" else about_memory(findings)
    return (_no_verdict(facts, failure), *(f for f in kept if f.kind != "INSUFFICIENT_DATA"))


def _no_verdict(facts: RunFacts, failure: FailureReport) -> Finding:
    """Leads the findings of a failed run."""
    ending = "was interrupted" if facts.status == "interrupted" else "failed"
    return Finding(
        kind="INSUFFICIENT_DATA",
        severity="info",
        confidence="low",
        summary=f"The run {ending}: {failure.summary}. This is no verdict on its performance.",
        action=failure.next_step,
        ranks=() if failure.initiating_rank is None else (failure.initiating_rank,),
    )


def _time(wall_ns: int | None) -> str | None:
    return None if wall_ns is None else rfc3339(wall_ns)
