"""Every incarnation of every rank, its state, and what is known of it.

Theory of operation
===================

An incarnation is *expected* once its launcher named it, *active* once it said hello or sent records, *suspect* when its
connection is gone without a marker or when training has ended around it, *finished* by its marker, *lost* when nobody
waits for it any longer. Only *finished* and *lost* are terminal, and only *finished* is for good: until the run is
sealed a marker turns a lost rank into a finished one, and while training runs a lost rank that comes back is active.

What moves a state is a sign. The same message can be two signs: records of a rank are a sign of life while training
runs (ALIVE), afterwards they only buy it more time (LATE). Records of a rank whose launcher saw its process end are no
sign of life at all: they were on the way, or are handed in. So a rank that talks after the end is not lost, a rank that
is silent costs its grace, and a dead one costs nothing.

A slot (node, local rank) holds one process at a time: the hello of a new attempt is the end of the older one. The
global rank belongs to the attempt; the last attempt of a rank is looked for among the youngest attempts of all slots.

Edit the table and this text together. A sign that a state does not name leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from traceml_daemon.core.events import Incarnation, RankEnding, RankPlace, RankStateName


class Sign(Enum):
    """What moves a rank from state to state."""

    ALIVE = auto()
    """A hello or records while training runs."""
    LATE = auto()
    """A hello or records after training has ended."""
    MARKER = auto()
    CUT = auto()
    """Its connection is gone."""
    GONE = auto()
    """Its launcher saw its process end, its slot was taken by the next attempt, or its node was given up."""
    OVER = auto()
    """Training has ended."""
    EXPIRED = auto()
    """It was suspect for the whole grace."""


TRANSITIONS: Final[dict[RankStateName, dict[Sign, RankStateName]]] = {
    "expected": {
        Sign.ALIVE: "active",
        Sign.LATE: "suspect",
        Sign.MARKER: "finished",
        Sign.CUT: "suspect",
        Sign.GONE: "lost",
        Sign.OVER: "suspect",
    },
    "active": {
        Sign.ALIVE: "active",
        Sign.MARKER: "finished",
        Sign.CUT: "suspect",
        Sign.GONE: "lost",
        Sign.OVER: "suspect",
    },
    "suspect": {
        Sign.ALIVE: "active",
        Sign.LATE: "suspect",
        Sign.MARKER: "finished",
        Sign.CUT: "suspect",
        Sign.GONE: "lost",
        Sign.EXPIRED: "lost",
    },
    "lost": {
        Sign.ALIVE: "active",
        Sign.LATE: "suspect",
        Sign.MARKER: "finished",
    },
    "finished": {},
}

_OPEN: Final = frozenset({"expected", "active", "suspect"})


@dataclass(slots=True, kw_only=True)
class RankRecord:
    """What is known of one incarnation. Changed by `Ranks` only."""

    incarnation: Incarnation
    first_heard_s: float
    state: RankStateName = "expected"
    place: RankPlace | None = None
    """Null where only its end was heard of."""
    joined_s: float | None = None
    last_heard_s: float | None = None
    """The last hello or records."""
    last_step: int = 0
    is_connected: bool = False
    is_gone: bool = False
    is_abandoned: bool = False
    """Its node was given up: nobody waits for it, and its records no longer count as a sign of life."""
    is_complete: bool = False
    """Its marker came, and every record that it announces."""
    has_failed: bool = False
    """Its marker told of an error or of a nonzero exit."""
    ending: RankEnding | None = None
    """From its node's report."""

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN

    @property
    def is_exhausted(self) -> bool:
        """Nothing more can come from it."""
        return not self.is_connected and (self.is_gone or self.is_complete)


class Ranks:
    """All incarnations of a run. Times are the caller's `now`; they never go back."""

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._records: dict[Incarnation, RankRecord] = {}
        self._suspect_since: dict[Incarnation, float] = {}
        """In the order of their times, so that the first one expires first."""
        self._youngest: dict[tuple[int, int], int] = {}
        self._last_attempts: dict[int, RankRecord] | None = {}
        self._closed_nodes: set[int] = set()
        self._is_over = False
        self.num_open = 0

    def __iter__(self) -> Iterator[RankRecord]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    # --- what happened --------------------------------------------------------------------------------------------

    def place(self, incarnation: Incarnation, place: RankPlace, now: float) -> RankRecord:
        """Take note of where an incarnation stands; end its predecessors in the same slot."""
        record = self.record(incarnation, now)
        record.place = place
        self._last_attempts = None
        return record

    def join(self, incarnation: Incarnation, place: RankPlace, now: float) -> None:
        record = self.place(incarnation, place, now)
        record.is_connected = True
        record.joined_s = now if record.joined_s is None else record.joined_s
        self._hear(record, now)

    def send(self, incarnation: Incarnation, last_step: int, now: float) -> bool:
        """Returns whether its state changed."""
        record = self.record(incarnation, now)
        record.last_step = max(record.last_step, last_step)
        return self._hear(record, now)

    def finish(self, incarnation: Incarnation, now: float, *, is_complete: bool, has_failed: bool = False) -> bool:
        """Returns whether this marker told anything new."""
        record = self.record(incarnation, now)
        is_news = record.state != "finished" or is_complete > record.is_complete
        record.has_failed |= has_failed
        record.is_complete |= is_complete
        self._apply(record, Sign.MARKER, now)
        return is_news

    def drop(self, incarnation: Incarnation, now: float) -> bool:
        """Returns whether somebody has to wait for it now."""
        record = self.record(incarnation, now)
        record.is_connected = False
        self._apply(record, Sign.CUT, now)
        return record.is_open

    def bury(self, incarnation: Incarnation, now: float) -> None:
        """Its process is gone: nobody needs to wait for it."""
        record = self.record(incarnation, now)
        record.is_gone = True
        self._apply(record, Sign.GONE, now)

    def close_node(self, node_index: int, now: float) -> None:
        """Its launcher says that all processes of its ranks are gone, also of those that are heard of later."""
        self._closed_nodes.add(node_index)
        for record in [r for r in self if r.incarnation.node_index == node_index]:
            self.bury(record.incarnation, now)

    def abandon_node(self, node_index: int, now: float) -> None:
        """It was given up, and so are its ranks, whatever they still send."""
        for record in self:
            if record.incarnation.node_index == node_index:
                record.is_abandoned = True
                self._apply(record, Sign.GONE, now)

    def end(self, now: float) -> None:
        """Training is over: whoever has not finished is suspect from now on."""
        self._is_over = True
        for record in self:
            self._apply(record, Sign.OVER, now)

    def expire(self, now: float) -> bool:
        """Give up the suspects whose grace has run out. Returns whether there was one."""
        expired = [incarnation for incarnation, since in self._suspect_since.items() if since + self._grace_s <= now]
        for incarnation in expired:
            self._apply(self._records[incarnation], Sign.EXPIRED, now)
        return bool(expired)

    # --- what is known --------------------------------------------------------------------------------------------

    def record(self, incarnation: Incarnation, now: float) -> RankRecord:
        """The record of this incarnation; a new one if it was never heard of."""
        found = self._records.get(incarnation)
        if found is not None:
            return found
        record = self._records[incarnation] = RankRecord(incarnation=incarnation, first_heard_s=now)
        self.num_open += 1
        self._last_attempts = None
        self._supersede(incarnation, now)
        if self._is_over:
            self._apply(record, Sign.OVER, now)
        if incarnation.node_index in self._closed_nodes:
            self.bury(incarnation, now)
        return record

    def is_awaited(self, incarnation: Incarnation) -> bool:
        """Whether its signs keep the run from being sealed."""
        return not self._records[incarnation].is_abandoned

    def next_expiry(self) -> float:
        """When the first suspect will be given up; infinity without one."""
        return next(iter(self._suspect_since.values()), float("inf")) + self._grace_s

    def last_attempts(self) -> dict[int, RankRecord]:
        """Per global rank the attempt that speaks for it. Read only."""
        if self._last_attempts is None:
            ordered = sorted((r for r in self if self._is_youngest(r.incarnation) and r.place), key=_start_order)
            self._last_attempts = {record.place.rank: record for record in ordered if record.place is not None}
        return self._last_attempts

    def world_size(self, default: int) -> int:
        """As the youngest attempt says; `default` before the first one."""
        youngest = max(self.last_attempts().values(), key=_start_order, default=None)
        return default if youngest is None or youngest.place is None else youngest.place.world_size

    # --- transitions ----------------------------------------------------------------------------------------------

    def _hear(self, record: RankRecord, now: float) -> bool:
        record.last_heard_s = now
        if record.is_gone or record.is_abandoned or (record.state == "active" and not self._is_over):
            return False
        return self._apply(record, Sign.LATE if self._is_over else Sign.ALIVE, now)

    def _apply(self, record: RankRecord, sign: Sign, now: float) -> bool:
        """Look the sign up in the table. Returns whether the state changed. A suspect's grace starts anew."""
        before = record.state
        after = TRANSITIONS[before].get(sign)
        if after is None:
            return False
        record.state = after
        self.num_open += (after in _OPEN) - (before in _OPEN)
        self._suspect_since.pop(record.incarnation, None)
        if after == "suspect":
            self._suspect_since[record.incarnation] = now
        return after != before

    def _supersede(self, incarnation: Incarnation, now: float) -> None:
        """A slot holds one process: a new attempt ends the ones before it, and an old one is news of the past."""
        slot = (incarnation.node_index, incarnation.local_rank)
        before = self._youngest.get(slot)
        if before is None or incarnation.attempt > before:
            self._youngest[slot] = incarnation.attempt
        if before is not None:
            older = min(before, incarnation.attempt)
            self.bury(Incarnation(*slot, older), now)

    def _is_youngest(self, incarnation: Incarnation) -> bool:
        return self._youngest[incarnation.node_index, incarnation.local_rank] == incarnation.attempt


def _start_order(record: RankRecord) -> tuple[float, int, int, int]:
    incarnation = record.incarnation
    return record.first_heard_s, incarnation.attempt, incarnation.node_index, incarnation.local_rank
