"""What the reports are made from, beside the stored measurements: one frozen value per run.

The session builds it from its core and what peers sent; the offline finalizer builds it from the database, the nodes'
`node.json` and the recorders. Times are wall-clock nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceml_client.protocol.manifest import RecordCounts, TelemetryFacts, Topology, TrainingStatus
from traceml_client.protocol.node import NodeReport, RankError
from traceml_daemon.core.events import Incarnation, NodeVerdict, RankPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """One incarnation of a rank."""

    incarnation: Incarnation
    place: RankPlace
    state: str
    """A RankStateName, at the seal."""
    wall_minus_monotonic_ns: int
    clock_offset_ns: int
    """The daemon's wall clock minus this host's."""
    clock_bound_ns: int
    """Half the smallest round trip; -1 where it was never measured."""
    first_at_ns: int | None
    last_at_ns: int | None
    """First and last sign of life at the daemon."""
    started_ns: int | None = None
    """When its process started, as its launcher said."""
    records: RecordCounts
    error: RankError | None = None
    thread_error: RankError | None = None
    exit_code: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    run_name: str
    run_id: str
    status: TrainingStatus
    exit_code: int | None
    signal: str | None
    started_ns: int
    training_started_ns: int | None
    training_ended_ns: int | None
    interrupted_ns: int | None = None
    """When the owner's launcher got its first signal: what befell ranks later is a consequence."""
    generated_ns: int
    topology: Topology
    nodes: tuple[NodeVerdict, ...]
    node_reports: tuple[NodeReport, ...]
    attempts: tuple[AttemptFacts, ...]
    """Every incarnation of every rank, any order."""
    telemetry: TelemetryFacts
    warnings: tuple[str, ...] = ()
    """What the core said by `WarnOnce`, and other sentences for `finalization_warning.json`."""
    is_provisional: bool = False
