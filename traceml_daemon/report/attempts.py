"""A global rank's attempts in the order of their start, whichever slots they were in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traceml_client.protocol.node import NodeReport, RankEnd
from traceml_daemon.core.events import Incarnation
from traceml_daemon.diagnosis.wording import ranks_text as ranks_text
from traceml_daemon.peers.node_ending import why_no_marker
from traceml_daemon.report.facts import AttemptFacts


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


def ends_by_incarnation(reports: Iterable[NodeReport]) -> Mapping[Incarnation, RankEnd]:
    """What launchers say of the end of each incarnation."""
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
    if error is not None:
        first_line = f"{error.type}: {error.message}".splitlines()[0][:200]
        return f"exit code {code} after {first_line}" if code else f"finished after {first_line}"
    return f"exit code {code}" if code else "finished"
