"""A global rank's attempts in the order of their start, whichever slots they were in."""

from __future__ import annotations

from collections.abc import Iterable

from traceml_daemon.diagnosis.wording import ranks_text as ranks_text
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
