"""Rows of the telemetry database as values, and what is read back when a database is opened again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from traceml_client.protocol.columns import NUM_STREAMS
from traceml_daemon.storage import schema

TRAINING_STARTED_NS: Final = "training_started_ns"
INTERRUPTED_NS: Final = "interrupted_ns"
FRAMES_REJECTED: Final = "frames_rejected"
"""Keys of `meta` for what the next daemon has to know: times in wall-clock nanoseconds, and a count."""


class IncarnationRow(NamedTuple):
    """In the order of `schema.INCARNATION_COLUMNS`; errors and notes are JSON."""

    id: int
    node_index: int
    local_rank: int
    attempt: int
    rank: int
    world_size: int
    local_world_size: int
    torch_restart_count: int
    host: str
    pid: int
    start_ticks: int
    wall_minus_monotonic_ns: int
    clock_offset_ns: int
    clock_bound_ns: int
    first_at_ns: int | None
    last_at_ns: int | None
    started_ns: int | None
    error: str | None
    thread_error: str | None
    exit_code: int | None
    notes: str
    is_finished: int
    steps_recorded: int | None
    """How many steps the rank ever recorded, once it or its launcher said so."""
    samples_recorded: int | None


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """What the database holds of one stream of one incarnation."""

    next_seq: int = 0
    num_records: int = 0
    """Salvaged ones included."""
    num_salvaged: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """The content of a database, without the measurements themselves."""

    incarnations: tuple[IncarnationRow, ...] = ()
    streams: dict[tuple[int, int], StreamTotals] = field(default_factory=dict)
    """By (incarnation id, stream)."""
    meta: dict[str, str] = field(default_factory=dict)

    def number(self, key: str) -> int | None:
        """What `meta` has under that key; null where that is nothing."""
        text = self.meta.get(key, "")
        return int(text) if text.isascii() and text.isdigit() else None

    def totals(self, incarnation_id: int) -> tuple[StreamTotals, ...]:
        """One per stream, in their order."""
        return tuple(self.streams.get((incarnation_id, stream), StreamTotals()) for stream in range(NUM_STREAMS))

    @classmethod
    def from_rows(
        cls, *, incarnations: Iterable[Sequence[Any]], streams: Iterable[Sequence[Any]], meta: Iterable[Sequence[Any]]
    ) -> Recovered:
        """From the answers to `schema.SELECT_INCARNATIONS`, `SELECT_STREAMS` and `SELECT_META`."""
        return cls(
            tuple(IncarnationRow(*row) for row in incarnations),
            {(row[0], row[1]): StreamTotals(row[2], row[3], row[4]) for row in streams},
            {row[0]: row[1] for row in meta},
        )


assert IncarnationRow._fields == schema.INCARNATION_COLUMNS
