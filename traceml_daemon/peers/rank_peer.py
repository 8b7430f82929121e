"""A rank's connection, once it is let in: what each of its messages means for its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceml_client.protocol import messages
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.messages import Ack, Ping, RankFinished, Records, ToDaemon
from traceml_daemon.core import events as ev

if TYPE_CHECKING:
    from traceml_daemon.peers.connection import Connection
    from traceml_daemon.peers.slots import RankSlot
    from traceml_daemon.run.session import Session

_MAX_INTEGER: Final = 1 << 62
_MAX_NOTES: Final = 32


class RankPeer:
    """`receive` is the hot path: records go straight to the intake."""

    __slots__ = ("_connection", "_session", "_slot", "_take")

    def __init__(self, session: Session, slot: RankSlot, connection: Connection) -> None:
        self._session = session
        self._slot = slot
        self._connection = connection
        self._take = session.intake.take

    def receive(self, message: ToDaemon) -> None:
        if message.__class__ is Records:
            self._take(self._slot, message)
        elif isinstance(message, Ping):
            self._answer(message)
        elif isinstance(message, RankFinished):
            self._finish(message)
        elif isinstance(message, messages.RankFailed):
            self._slot.take_error(message.error)
            self._session.keep(self._slot)
        else:
            raise RemoteProtocolError(f"a rank does not send {type(message).__name__}")

    def lost(self) -> None:
        slot = self._slot
        self._session.intake.flow.remove(self._connection)
        if slot.connection is self._connection:
            slot.connection = None
            slot.hear(self._session.clock.wall_ns())
            if not self._session.store.is_idle:  # its last records are still to be committed
                self._session.apply(ev.RankSent(slot.incarnation, slot.last_step))
            self._session.apply(ev.RankDropped(slot.incarnation))

    def _answer(self, ping: Ping) -> None:
        slot, wall_ns = self._slot, self._session.clock.wall_ns()
        self._connection.send(messages.Pong(ping.sent_ns, wall_ns))
        if 0 <= ping.clock_bound_ns < _MAX_INTEGER and abs(ping.clock_offset_ns) < _MAX_INTEGER:
            slot.clock_offset_ns, slot.clock_bound_ns = ping.clock_offset_ns, ping.clock_bound_ns
        slot.hear(wall_ns)

    def _finish(self, marker: RankFinished) -> None:
        numbers = (*marker.next_seq, abs(marker.exit_code or 0))
        if not all(0 <= number < _MAX_INTEGER for number in numbers):
            raise RemoteProtocolError("a marker with impossible numbers")
        slot = self._slot
        slot.is_finished = True
        slot.note_recorded(marker.next_seq)
        slot.exit_code = marker.exit_code if slot.exit_code is None else slot.exit_code
        slot.notes = marker.notes[:_MAX_NOTES]
        if marker.error is not None:
            slot.take_error(marker.error)
        slot.hear(self._session.clock.wall_ns())
        self._session.keep(slot)
        self._session.store.when_committed(self._acknowledge)
        self._session.tell_finished(slot)

    def _acknowledge(self) -> None:
        """Only now may it exit: a daemon that is killed from here on still knows that it finished."""
        self._connection.send(Ack(messages.MARKER_STREAM, 0))
