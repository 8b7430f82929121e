"""What the reports are made from, beside the stored measurements: one frozen value per run.

The session builds it from its core and what peers sent; the offline finalizer builds it from the database, the nodes'
`node.json` and the recorders. Times are wall-clock nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from traceml_client.protocol.manifest import NodeOutcome, RecordCounts, TelemetryFacts, Topology, TrainingStatus
from traceml_client.protocol.node import NodeReport, RankEnd, RankError
from traceml_daemon.core.events import Incarnation, RankPlace
from traceml_daemon.peers.node_ending import why_no_marker


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
    nodes: tuple[NodeOutcome, ...]
    node_reports: tuple[NodeReport, ...]
    attempts: tuple[AttemptFacts, ...]
    """Every incarnation of every rank, any order."""
    telemetry: TelemetryFacts
    warnings: tuple[str, ...] = ()
    """What the core said by `WarnOnce`, and other sentences for `finalization_warning.json`."""
    is_provisional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What terminal and manifest say first: of a failure, or of what is worth a look in a run that completed."""

    verdict_lines: tuple[str, ...] = ()
    failure_sentence: str | None = None
    faults: tuple[str, ...] = ()
    """Of ours, which cost a part that a report can do without: sentences for `finalization_warning.json`."""


def by_rank(attempts: Iterable[AttemptFacts]) -> dict[int, tuple[AttemptFacts, ...]]:
    """Rank to its attempts, the oldest first; a rank's number in the reports is the place in this order."""
    grouped: dict[int, list[AttemptFacts]] = {}
    for attempt in attempts:
        grouped.setdefault(attempt.place.rank, []).append(attempt)
    return {rank: tuple(sorted(grouped[rank], key=_start_order)) for rank in sorted(grouped)}


def last_attempts(attempts: Iterable[AttemptFacts]) -> dict[int, AttemptFacts]:
    """Rank to the attempt that speaks for it."""
    return {rank: ordered[-1] for rank, ordered in by_rank(attempts).items()}


def _start_order(attempt: AttemptFacts) -> tuple[int, int, int, int]:
    """A slot's attempts follow one another; between slots the start decides, as far as it is known."""
    started_ns = attempt.started_ns or attempt.first_at_ns or 0
    incarnation = attempt.incarnation
    return started_ns, incarnation.attempt, incarnation.node_index, incarnation.local_rank


def ends_of(reports: Iterable[NodeReport]) -> dict[Incarnation, RankEnd]:
    """What launchers saw of the end of each incarnation."""
    return {
        Incarnation(report.node_index, end.local_rank, end.attempt): end for report in reports for end in report.ranks
    }


def ending_text(attempt: AttemptFacts, end: RankEnd | None) -> str | None:
    """How an attempt ended: `killed by SIGTERM`, `exit code 1 after ValueError: no data`, `finished`."""
    if end is not None and not end.is_marker_sent:
        return why_no_marker(end)
    if end is None and attempt.state != "finished":
        return "its connection was lost before its marker" if attempt.state == "lost" else None
    error, code = attempt.error or attempt.thread_error, attempt.exit_code
    if error is not None and error.type != "SystemExit":
        first_line = f"{error.type}: {error.message}".splitlines()[0][:200]
        return f"exit code {code} after {first_line}" if code else f"finished after {first_line}"
    return f"exit code {code}" if code else "finished"
