"""From what a run's shell knows to the frozen facts that reports and manifest are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from traceml_client.protocol.manifest import (
    MissingRank,
    NodeOutcome,
    RecordCounts,
    TelemetryFacts,
    TelemetryReason,
    TelemetryStatus,
    Topology,
    TrainingOutcome,
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
class RunKnowledge:
    """All that a finished run leaves in memory, in a live daemon or in an offline one. Times are wall clock."""

    config: RunConfig
    roster: Roster
    core: RunCore
    node_reports: Mapping[int, NodeReport]
    training_started_ns: int | None = None
    training_ended_ns: int | None = None
    interrupted_ns: int | None = None
    """The owner's first signal."""
    warnings: tuple[str, ...]
    frames_rejected: int = 0
    is_authenticated: bool = True
    storage_failure: str | None = None
    cause: TelemetryReason | None = None
    """Why telemetry is degraded whatever it holds: the daemon died before it could finalize."""


def telemetry_facts(known: RunKnowledge, seal: ev.SealRun, *, is_pending: bool = False) -> TelemetryFacts:
    """The telemetry part of manifest and summary, if the reports themselves succeed."""
    records = _total_records(known.roster)
    status, why = ("pending", None) if is_pending else _judge_telemetry(known, seal, records)
    return TelemetryFacts(
        status=status,
        reason=why,
        ranks_expected=known.core.world_size(),
        ranks_finished=seal.finished,
        ranks_missing=tuple(_missing_rank(known.roster, rank) for rank in seal.missing),
        records=records,
        frames_rejected=known.frames_rejected,
        authenticated=known.is_authenticated,
    )


def _judge_telemetry(
    known: RunKnowledge, seal: ev.SealRun, records: RecordCounts
) -> tuple[TelemetryStatus, TelemetryReason | None]:
    """The status in a run whose reports could be written; the gravest reason is named."""
    if not known.config.has_history:
        return "unavailable", "history_disabled"
    grounds: tuple[tuple[object, TelemetryReason], ...] = (
        (known.cause, known.cause or "aggregator_died"),
        (known.storage_failure, "storage_full"),
        (seal.reason == "finalize_timeout", "finalize_timeout"),
        (seal.missing, "finalization_warning"),
        (records.dropped or records.samples_dropped, "rows_dropped"),
    )
    reason = next((name for is_given, name in grounds if is_given), None)
    return "complete" if reason is None else "degraded", reason


def _total_records(slots: Iterable[RankSlot]) -> RecordCounts:
    """The sum over all incarnations."""
    counts = [msgspec.structs.astuple(slot.records) for slot in slots]
    return RecordCounts(*map(sum, zip(*counts, strict=True)))


def run_facts(
    known: RunKnowledge,
    seal: ev.SealRun,
    telemetry: TelemetryFacts,
    *,
    generated_ns: int,
    is_provisional: bool = False,
) -> RunFacts:
    """Provisional: a run that was just interrupted, whatever the verdict would be."""
    config, verdict = known.config, seal.verdict
    states = {record.incarnation: record.state for record in known.core.ranks}
    return RunFacts(
        run_name=config.run_name,
        run_id=config.run_id,
        status="interrupted" if is_provisional else verdict.status,
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        started_ns=config.created_ns,
        training_started_ns=known.training_started_ns,
        training_ended_ns=known.training_ended_ns,
        interrupted_ns=known.interrupted_ns,
        generated_ns=generated_ns,
        topology=_topology(known),
        nodes=_nodes(verdict),
        node_reports=tuple(report for _, report in sorted(known.node_reports.items())),
        attempts=tuple(slot.facts(states.get(slot.incarnation, "expected")) for slot in known.roster),
        telemetry=telemetry,
        warnings=known.warnings,
        is_provisional=is_provisional,
    )


def final_fields(
    known: RunKnowledge, seal: ev.SealRun, telemetry: TelemetryFacts, sentence: str | None
) -> dict[str, Any]:
    """What the last manifest says of training and telemetry."""
    return {
        "status": seal.verdict.status,
        "training": training_outcome(known, seal.verdict, sentence),
        "topology": _topology(known),
        "telemetry_status": telemetry.status,
        "telemetry_reason": telemetry.reason,
        "telemetry": telemetry,
    }


def _topology(known: RunKnowledge) -> Topology:
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
        nodes=_nodes(verdict),
        failure_sentence=sentence,
    )


def _nodes(verdict: ev.TrainingVerdict) -> tuple[NodeOutcome, ...]:
    return tuple(NodeOutcome(node.node_index, node.exit_code, node.signal, node.why) for node in verdict.nodes)


def _missing_rank(roster: Roster, missing: ev.RankMissing) -> MissingRank:
    slot = roster.slots.get(missing.incarnation) if missing.incarnation is not None else None
    last_at_ns = slot.last_at_ns if slot is not None else None
    return MissingRank(
        rank=missing.rank,
        last_step=slot.last_step if slot is not None else 0,
        last_seen_at=None if last_at_ns is None else rfc3339(last_at_ns),
        why=missing.why,
    )
