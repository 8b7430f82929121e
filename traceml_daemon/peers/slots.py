"""What the daemon keeps of one incarnation of a rank: who it is, what of it has arrived, what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

import msgspec

from traceml_client.protocol.columns import NUM_STREAMS, SAMPLE_STREAM, STEP_STREAM
from traceml_client.protocol.manifest import RecordCounts
from traceml_client.protocol.node import RankEnd, RankError
from traceml_daemon.core.events import Incarnation, RankPlace
from traceml_daemon.core.sequence import Sequence
from traceml_daemon.report.facts import AttemptFacts
from traceml_daemon.storage.rows import IncarnationRow, StreamTotals

if TYPE_CHECKING:
    from traceml_daemon.peers.connection import Connection

_STORED_AS_IT_IS: Final = IncarnationRow._fields[
    IncarnationRow._fields.index("start_ticks") : IncarnationRow._fields.index("error")
]
_FACTS: Final = tuple(each.name for each in fields(AttemptFacts) if each.name != "state")


@dataclass(slots=True)
class StreamCounts:
    """One stream's records by what became of them; `arrived` knows of gaps and repeats."""

    arrived: Sequence = field(default_factory=Sequence)
    num_stored: int = 0
    num_salvaged: int = 0
    num_discarded: int = 0
    """Arrived, but could not be written."""
    num_recorded: int | None = None
    """How many the rank ever made, once somebody said so."""

    @property
    def is_complete(self) -> bool:
        return self.num_recorded is not None and self.arrived.next_seq >= self.num_recorded

    @property
    def num_dropped(self) -> int:
        return self.arrived.num_gap + self.num_discarded


@dataclass(slots=True, kw_only=True)
class RankSlot:
    """One incarnation."""

    id: int
    """In the database."""
    incarnation: Incarnation
    place: RankPlace
    start_ticks: int
    connection: Connection | None = None
    wall_minus_monotonic_ns: int = 0
    clock_offset_ns: int = 0
    clock_bound_ns: int = -1
    first_at_ns: int | None = None
    last_at_ns: int | None = None
    started_ns: int | None = None
    error: RankError | None = None
    thread_error: RankError | None = None
    exit_code: int | None = None
    notes: tuple[str, ...] = ()
    is_finished: bool = False
    streams: tuple[StreamCounts, ...] = field(default_factory=lambda: tuple(StreamCounts() for _ in range(NUM_STREAMS)))

    def is_process(self, *, pid: int, start_ticks: int) -> bool:
        return self.place.pid == pid and self.start_ticks == start_ticks

    def hear(self, wall_ns: int) -> None:
        """A sign of life."""
        if self.first_at_ns is None:
            self.first_at_ns = wall_ns
        self.last_at_ns = wall_ns

    def take_error(self, error: RankError) -> None:
        """The first one of each kind stays: what came first is nearer to the cause."""
        if error.kind == "main":
            self.error = self.error or error
        else:
            self.thread_error = self.thread_error or error

    def note_recorded(self, next_seq: tuple[int, int]) -> None:
        """Somebody who knows says how many records of each stream were ever made."""
        for stream, number in zip(self.streams, next_seq, strict=True):
            stream.num_recorded = max(number, stream.num_recorded or 0)

    def take_end(self, end: RankEnd, *, is_final: bool) -> None:
        """What its launcher says of its end; it knows better than the rank how that went."""
        self.exit_code = end.exit_code if end.exit_code is not None else self.exit_code
        self.started_ns = end.started_ns
        self.notes = self.notes or end.notes
        for error in (end.error, end.thread_error):
            if error is not None:
                self.take_error(error)
        if is_final and end.died_ns is not None:
            steps = self.streams[STEP_STREAM]
            steps.num_recorded = max(end.num_steps_recorded, steps.num_recorded or 0)

    def close(self) -> None:
        """The run is sealed: what is known to have existed and did not arrive is dropped."""
        for stream in self.streams:
            if stream.num_recorded is not None:
                stream.arrived.close_at(stream.num_recorded)

    def settle(self, stream: int, num_records: int, *, is_salvaged: bool, is_stored: bool) -> None:
        """What became of records that had been put into the store."""
        counts = self.streams[stream]
        if not is_stored:
            counts.num_discarded += num_records
        elif is_salvaged:
            counts.num_salvaged += num_records
        else:
            counts.num_stored += num_records

    @property
    def next_seq(self) -> tuple[int, int]:
        """Per stream, where a reconnected rank goes on."""
        return self.streams[STEP_STREAM].arrived.next_seq, self.streams[SAMPLE_STREAM].arrived.next_seq

    @property
    def last_step(self) -> int:
        """Steps are numbered from 1."""
        return self.streams[STEP_STREAM].arrived.next_seq

    @property
    def is_complete(self) -> bool:
        """Every record that the rank says it made has arrived."""
        return all(stream.is_complete for stream in self.streams)

    @property
    def records(self) -> RecordCounts:
        """Of its steps; of its samples only what was dropped is told."""
        steps, samples = self.streams
        return RecordCounts(
            received=steps.arrived.num_received,
            stored=steps.num_stored,
            dropped=steps.num_dropped,
            salvaged=steps.num_salvaged,
            samples_dropped=samples.num_dropped,
        )

    def row(self) -> IncarnationRow:
        values = (
            self.id,
            *self.incarnation,
            *self.place,
            *(getattr(self, name) for name in _STORED_AS_IT_IS),
            _error_json(self.error),
            _error_json(self.thread_error),
            self.exit_code,
            msgspec.json.encode(self.notes).decode(),
            int(self.is_finished),
            *(stream.num_recorded for stream in self.streams),
        )
        return IncarnationRow._make(values)

    @classmethod
    def from_row(cls, row: IncarnationRow, totals: tuple[StreamTotals, ...]) -> RankSlot:
        """As a database had it. Raises msgspec.DecodeError if its JSON is damaged."""
        recorded = (row.steps_recorded, row.samples_recorded)
        return cls(
            id=row.id,
            incarnation=Incarnation(row.node_index, row.local_rank, row.attempt),
            place=RankPlace(*(getattr(row, name) for name in RankPlace._fields)),
            **{name: getattr(row, name) for name in _STORED_AS_IT_IS},
            error=_error_from(row.error),
            thread_error=_error_from(row.thread_error),
            exit_code=row.exit_code,
            notes=msgspec.json.decode(row.notes, type=tuple[str, ...]),
            is_finished=bool(row.is_finished),
            streams=tuple(map(_counts, totals, recorded)),
        )

    def facts(self, state: str) -> AttemptFacts:
        """As of now; the slot may still change."""
        return AttemptFacts(state=state, **{name: getattr(self, name) for name in _FACTS})


def _counts(totals: StreamTotals, num_recorded: int | None) -> StreamCounts:
    """A stream starts at 0, so what is missing below its next sequence was dropped."""
    return StreamCounts(
        arrived=Sequence(totals.next_seq, totals.num_records, totals.next_seq - totals.num_records),
        num_stored=totals.num_records - totals.num_salvaged,
        num_salvaged=totals.num_salvaged,
        num_recorded=num_recorded,
    )


def _error_json(error: RankError | None) -> str | None:
    return None if error is None else msgspec.json.encode(error).decode()


def _error_from(text: str | None) -> RankError | None:
    return None if text is None else msgspec.json.decode(text, type=RankError)
