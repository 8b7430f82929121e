"""Records on their way: held back when there is no room, counted once, stored, acknowledged when they are committed.

`take` is called for every frame of every rank; everything that can wait for the commit is done there, once per rank
and transaction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from traceml_client.protocol import columns
from traceml_client.protocol.columns import NUM_STREAMS, RECORD_SIZE
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.messages import Ack, Records, SalvageAck
from traceml_daemon.storage.chunks import Chunk

if TYPE_CHECKING:
    from traceml_daemon.peers.connection import Connection
    from traceml_daemon.peers.roster import Roster
    from traceml_daemon.peers.slots import RankSlot
    from traceml_daemon.storage.store import Sink


class Pausable(Protocol):
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class FlowControl:
    """The connections of one run that bring records."""

    def __init__(self) -> None:
        self.is_paused = False
        self.num_pauses = 0
        self._connections: set[Pausable] = set()

    def add(self, connection: Pausable) -> None:
        self._connections.add(connection)
        if self.is_paused:
            connection.pause()

    def remove(self, connection: Pausable) -> None:
        self._connections.discard(connection)

    def pause(self) -> None:
        """All at once: each that could bring one more buffer would be another quarter of a megabyte."""
        if not self.is_paused:
            self.is_paused = True
            self.num_pauses += 1
            for connection in self._connections:
                connection.pause()

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            for connection in self._connections:
                connection.resume()


MAX_SEQUENCE: Final = 1 << 53
"""A rank at a million steps a second gets there in 285 years."""
_new_tuple: Final = tuple.__new__
"""Half the price of calling a named tuple, and paid for every frame."""


class Intake:
    """Between the connections of one run and its store."""

    def __init__(
        self, roster: Roster, store: Sink, *, has_history: bool, on_heard: Callable[[list[RankSlot]], None]
    ) -> None:
        self.flow = FlowControl()
        self._has_history = has_history
        self._roster = roster
        self._store = store
        self._put = store.put
        self._on_heard = on_heard
        store.on_commit = self._settle
        store.on_room = self.flow.resume

    def take(self, slot: RankSlot, records: Records, *, is_salvaged: bool = False) -> None:
        """Records of one incarnation, from itself or from its launcher.

        Raises:
            RemoteProtocolError: their numbers do not fit together.
        """
        stream, first_seq, count = records.stream, records.first_seq, records.count
        fmt, data = records.fmt, records.columns
        if count < 1 or len(data) != RECORD_SIZE.get(fmt, 0) * count:
            columns.check(fmt, count, data)
        if not 0 <= stream < NUM_STREAMS or not 0 <= first_seq < MAX_SEQUENCE:
            raise RemoteProtocolError(f"no stream {stream} has a record {first_seq}")
        repeated = slot.streams[stream].arrived.accept(first_seq, count)
        if repeated:
            if repeated == count:
                self._acknowledge_repeat(slot, stream, is_salvaged=is_salvaged)
                return
            data = columns.drop_first(fmt, count, data, repeated)
            first_seq += repeated
            count -= repeated
        if self._put(_new_tuple(Chunk, (slot.id, stream, first_seq, count, fmt, data, is_salvaged))):
            self.flow.pause()

    def acknowledge_arrived(self, slot: RankSlot) -> None:
        """To a rank that came back: its acknowledgements may have been lost with the connection before."""
        for stream, counts in enumerate(slot.streams):
            if counts.arrived.next_seq:
                self._acknowledge_repeat(slot, stream, is_salvaged=False)

    def _acknowledge_repeat(self, slot: RankSlot, stream: int, *, is_salvaged: bool) -> None:
        """All of it was here already; the sender does not know, or it would not have sent it."""
        next_seq = slot.streams[stream].arrived.next_seq
        self._store.when_committed(functools.partial(self._acknowledge, slot, stream, next_seq, is_salvaged))

    def _settle(self, chunks: Iterable[Chunk], is_stored: bool) -> None:
        """What one transaction held is stored, or lost and counted; either way its senders may forget it."""
        sums: dict[tuple[int, int, bool], int] = {}
        ends: dict[tuple[int, int, bool], int] = {}
        for slot_id, stream, first_seq, count, _, _, is_salvaged in chunks:
            key = (slot_id, stream, is_salvaged)
            sums[key] = sums.get(key, 0) + count
            ends[key] = first_seq + count
        slots = {}
        for (slot_id, stream, is_salvaged), count in sums.items():
            slot = slots[slot_id] = self._roster.by_id(slot_id)
            if self._has_history:
                slot.settle(stream, count, is_salvaged=is_salvaged, is_stored=is_stored)
            self._acknowledge(slot, stream, ends[slot_id, stream, is_salvaged], is_salvaged)
        self._on_heard(list(slots.values()))

    def _acknowledge(self, slot: RankSlot, stream: int, next_seq: int, is_salvaged: bool) -> None:
        if not is_salvaged:
            if slot.connection is not None:
                slot.connection.send(Ack(stream, next_seq))
            return
        launcher = self._launcher_of(slot)
        if launcher is not None:
            _, local_rank, attempt = slot.incarnation
            launcher.send(SalvageAck(local_rank, attempt, stream, next_seq))

    def _launcher_of(self, slot: RankSlot) -> Connection | None:
        node = self._roster.nodes.get(slot.incarnation.node_index)
        return node.connection if node is not None else None
