"""Facts of a run for tests of the reports: a job of a few ranks, each with how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceml_client.protocol.manifest import (
    MissingRank,
    NodeOutcome,
    RecordCounts,
    TelemetryFacts,
    Topology,
    TrainingStatus,
)
from traceml_client.protocol.node import NODE_SCHEMA_VERSION, NodeReport, RankEnd, RankError
from traceml_daemon.core.events import Incarnation, RankPlace
from traceml_daemon.report.facts import AttemptFacts, RunFacts

START_NS = 1_790_000_000_000_000_000
S = 1_000_000_000
MS = 1_000_000
NO_RECORDS = RecordCounts()


def error(kind: str, message: str = "", *, at_ms: float, step: int = 21, is_thread: bool = False) -> RankError:
    return RankError(
        kind="thread" if is_thread else "main",
        type=kind,
        message=message,
        traceback=f"Traceback (most recent call last):\n{kind}: {message}\n",
        raised_ns=START_NS + int(at_ms * MS),
        step=step,
        phase="forward",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One attempt; by default it ended well."""

    rank: int
    node_index: int = 0
    local_rank: int | None = None
    attempt: int = 0
    host: str = "node-a"
    clock_offset_ns: int = 0
    clock_bound_ns: int = -1
    error: RankError | None = None
    thread_error: RankError | None = None
    """Beside an error of the main thread."""
    exit_code: int | None = 0
    signal: str | None = None
    died_ms: float | None = None
    step: int = 21
    """The step in progress at its end; 0 before the first."""
    stopped_by_launcher: str | None = None
    state: str = "finished"
    records: RecordCounts = NO_RECORDS
    notes: tuple[str, ...] = ()

    @property
    def incarnation(self) -> Incarnation:
        local_rank = self.rank if self.local_rank is None else self.local_rank
        return Incarnation(self.node_index, local_rank, self.attempt)

    @property
    def died_ns(self) -> int | None:
        return None if self.died_ms is None else START_NS + int(self.died_ms * MS)


def attempt_facts(rank: Rank, world_size: int) -> AttemptFacts:
    is_thread = rank.error is not None and rank.error.kind == "thread"
    return AttemptFacts(
        incarnation=rank.incarnation,
        place=RankPlace(
            rank=rank.rank,
            world_size=world_size,
            local_world_size=world_size,
            torch_restart_count=rank.attempt,
            host=rank.host,
            pid=100 + rank.rank,
        ),
        state=rank.state,
        wall_minus_monotonic_ns=0,
        clock_offset_ns=rank.clock_offset_ns,
        clock_bound_ns=rank.clock_bound_ns,
        first_at_ns=START_NS,
        last_at_ns=START_NS + 30 * S,
        started_ns=START_NS + rank.attempt * S,
        records=rank.records,
        error=None if is_thread else rank.error,
        thread_error=rank.error if is_thread else rank.thread_error,
        exit_code=rank.exit_code,
        notes=rank.notes,
    )


def node_report(
    ranks: Sequence[Rank],
    *,
    node_index: int = 0,
    exit_code: int | None = 1,
    signal: str | None = None,
    interrupted_by: str | None = None,
    root_cause_rank: int | None = None,
    torchrun_got: str | None = None,
) -> NodeReport:
    ends = (
        RankEnd(
            rank=rank.rank,
            local_rank=rank.incarnation.local_rank,
            attempt=rank.attempt,
            torch_restart_count=rank.attempt,
            pid=100 + rank.rank,
            started_ns=START_NS,
            died_ns=rank.died_ns,
            death_order=None,
            exit_code=None if rank.signal else rank.exit_code,
            signal=rank.signal,
            exit_source="pidfd",
            is_marker_sent=rank.state == "finished",
            step=rank.step,
            phase="forward" if rank.step else None,
            stopped_by_launcher=rank.stopped_by_launcher,
        )
        for rank in ranks
        if rank.node_index == node_index
    )
    return NodeReport(
        schema_version=NODE_SCHEMA_VERSION,
        run_name="demo",
        run_id="demo-1",
        node_index=node_index,
        host="node-a",
        launcher_pid=1,
        started_ns=START_NS,
        ended_ns=START_NS + 30 * S,
        torchrun_pid=2,
        exit_code=exit_code,
        signal=signal,
        interrupted_by=interrupted_by,
        ranks=tuple(ends),
        torchrun_root_cause_rank=root_cause_rank,
        torchrun_got=torchrun_got,
    )


def run_facts(
    ranks: Sequence[Rank],
    *,
    status: TrainingStatus = "failed",
    exit_code: int | None = 1,
    reports: Sequence[NodeReport] | None = None,
    nodes: tuple[NodeOutcome, ...] = (),
    missing: tuple[MissingRank, ...] = (),
    interrupted_ns: int | None = None,
    warnings: tuple[str, ...] = (),
    is_provisional: bool = False,
) -> RunFacts:
    world_size = 1 + max((rank.rank for rank in ranks), default=0)
    gone = {rank.rank for rank in missing}
    return RunFacts(
        run_name="demo",
        run_id="demo-1",
        status=status,
        exit_code=exit_code,
        signal=None,
        started_ns=START_NS,
        training_started_ns=START_NS,
        training_ended_ns=START_NS + 30 * S,
        interrupted_ns=interrupted_ns,
        generated_ns=START_NS + 31 * S,
        topology=Topology(nnodes=1, nproc_per_node=world_size, world_size=world_size),
        nodes=nodes or (NodeOutcome(node_rank=0, exit_code=exit_code, signal=None, why=None),),
        node_reports=tuple(reports if reports is not None else (node_report(ranks, exit_code=exit_code),)),
        attempts=tuple(attempt_facts(rank, world_size) for rank in ranks),
        telemetry=TelemetryFacts(
            status="degraded" if missing else "complete",
            reason="finalization_warning" if missing else None,
            ranks_expected=world_size,
            ranks_finished=tuple(rank for rank in range(world_size) if rank not in gone),
            ranks_missing=missing,
        ),
        warnings=warnings,
        is_provisional=is_provisional,
    )
