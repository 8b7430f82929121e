"""From what a run's shell knows to the frozen facts that reports and manifest are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traceml_client.protocol.manifest import (
    MissingRank,
    NodeOutcome,
    RecordCounts,
    TelemetryFacts,
    TelemetryReason,
    TelemetryStatus,
    Topology,
    TrainingOutcome,
    TrainingStatus,
    rfc3339,
)
from traceml_client.protocol.node import NodeReport
from traceml_daemon.config import RunConfig
from traceml_daemon.core import events as ev
from traceml_daemon.core.finalize import RunCore
from traceml_daemon.peers.roster import Roster
from traceml_daemon.peers.slots import RankSlot
from traceml_daemon.report.facts import RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Wall-clock nanoseconds."""

    training_started_ns: int | None = None
    training_ended_ns: int | None = None
    interrupted_ns: int | None = None
    """The owner's first signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKnowledge:
    """All that a finished run leaves in memory, in a live daemon or in an offline one."""

    config: RunConfig
    roster: Roster
    core: RunCore
    node_reports: Mapping[int, NodeReport]
    times: RunTimes
    warnings: tuple[str, ...]
    frames_rejected: int = 0
    is_authenticated: bool = True
    storage_failure: str | None = None
    cause: TelemetryReason | None = None
    """Why telemetry is degraded whatever it holds: the daemon died before it could finalize."""


def telemetry_facts(
    known: RunKnowledge,
    *,
    finished: tuple[int, ...],
    missing: tuple[ev.RankMissing, ...],
    reason: ev.SealReason,
    is_pending: bool = False,
) -> TelemetryFacts:
    """The telemetry part of manifest and summary, if the reports themselves succeed."""
    records = total_records(known.roster)
    status, why = judge_telemetry(known, records=records, is_missing=bool(missing), reason=reason)
    if is_pending:
        status, why = "pending", None
    return TelemetryFacts(
        status=status,
        reason=why,
        ranks_expected=known.core.world_size(),
        ranks_finished=finished,
        ranks_missing=tuple(_missing_rank(known.roster, rank) for rank in missing),
        records=records,
        frames_rejected=known.frames_rejected,
        authenticated=known.is_authenticated,
    )


def judge_telemetry(
    known: RunKnowledge, *, records: RecordCounts, is_missing: bool, reason: ev.SealReason
) -> tuple[TelemetryStatus, TelemetryReason | None]:
    """The status in a run whose reports could be written; the gravest reason is named."""
    if not known.config.has_history:
        return "unavailable", "history_disabled"
    grounds: tuple[tuple[object, TelemetryReason], ...] = (
        (known.cause, known.cause or "aggregator_died"),
        (known.storage_failure, "storage_full"),
        (reason == "finalize_timeout", "finalize_timeout"),
        (is_missing, "finalization_warning"),
        (records.dropped or records.samples_dropped, "rows_dropped"),
    )
    for is_given, name in grounds:
        if is_given:
            return "degraded", name
    return "complete", None


def total_records(slots: Iterable[RankSlot]) -> RecordCounts:
    """The sum over all incarnations."""
    counts = [slot.records for slot in slots]
    return RecordCounts(
        received=sum(count.received for count in counts),
        stored=sum(count.stored for count in counts),
        dropped=sum(count.dropped for count in counts),
        salvaged=sum(count.salvaged for count in counts),
        samples_dropped=sum(count.samples_dropped for count in counts),
    )


def run_facts(
    known: RunKnowledge,
    *,
    verdict: ev.TrainingVerdict,
    telemetry: TelemetryFacts,
    generated_ns: int,
    status: TrainingStatus | None = None,
    is_provisional: bool = False,
) -> RunFacts:
    """`status` overrides the verdict's: a run that was just interrupted has none yet."""
    config = known.config
    states = {record.incarnation: record.state for record in known.core.ranks}
    return RunFacts(
        run_name=config.run_name,
        run_id=config.run_id,
        status=status or verdict.status,
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        started_ns=config.created_ns,
        training_started_ns=known.times.training_started_ns,
        training_ended_ns=known.times.training_ended_ns,
        interrupted_ns=known.times.interrupted_ns,
        generated_ns=generated_ns,
        topology=topology(known),
        nodes=verdict.nodes,
        node_reports=tuple(report for _, report in sorted(known.node_reports.items())),
        attempts=tuple(slot.facts(states.get(slot.incarnation, "expected")) for slot in known.roster),
        telemetry=telemetry,
        warnings=known.warnings,
        is_provisional=is_provisional,
    )


def topology(known: RunKnowledge) -> Topology:
    """What was launched; where the launch did not say, what came."""
    config, world_size = known.config, known.core.world_size()
    nnodes = max(config.nnodes, len({slot.incarnation.node_index for slot in known.roster}))
    return Topology(
        nnodes=nnodes, nproc_per_node=config.nproc_per_node or -(-world_size // nnodes), world_size=world_size
    )


def training_outcome(known: RunKnowledge, verdict: ev.TrainingVerdict, sentence: str | None = None) -> TrainingOutcome:
    return TrainingOutcome(
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        attempts=1 + max((slot.incarnation.attempt for slot in known.roster), default=0),
        nodes=tuple(
            NodeOutcome(node_rank=node.node_index, exit_code=node.exit_code, signal=node.signal, why=node.why)
            for node in verdict.nodes
        ),
        failure_sentence=sentence,
    )


def _missing_rank(roster: Roster, missing: ev.RankMissing) -> MissingRank:
    slot = roster.slots.get(missing.incarnation) if missing.incarnation is not None else None
    last_at_ns = slot.last_at_ns if slot is not None else None
    return MissingRank(
        rank=missing.rank,
        last_step=slot.last_step if slot is not None else 0,
        last_seen_at=None if last_at_ns is None else rfc3339(last_at_ns),
        why=missing.why,
    )
