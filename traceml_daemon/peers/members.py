"""A rank's or a launcher's connection, once it is let in: what each of its messages means for its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from traceml_client.protocol import messages
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.launch import NODE_FILE, layout_node_dir
from traceml_client.protocol.messages import Ack, Ping, Pong, RankFinished, Records, ToDaemon
from traceml_daemon.core import events as ev
from traceml_daemon.peers.node_ending import check_report, node_ended
from traceml_daemon.run.final_files import import_ahead
from traceml_daemon.run.run_files import MAX_NODE_BYTES

if TYPE_CHECKING:
    from traceml_daemon.peers.connection import Connection
    from traceml_daemon.peers.roster import NodeSlot
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
        import_ahead(has_history=self._session.config.has_history)


LOSS_GRACE_S: Final = 5.0
"""A launcher may come back within this time; as in the core's settings."""
PROOF_GRACE_S: Final = 1.0
"""A launcher reads the token once it knows which run it has joined, and connects again with its proof."""


class NodePeer:
    """One launcher."""

    __slots__ = ("_connection", "_node", "_session")

    def __init__(self, session: Session, node: NodeSlot, connection: Connection) -> None:
        self._session = session
        self._node = node
        self._connection = connection
        if not node.has_proven:
            session.clock.call_at(session.clock.now_s() + PROOF_GRACE_S, self._tell_unproven)

    def receive(self, message: ToDaemon) -> None:
        session, index = self._session, self._node.node_index
        match message:
            case Ping():
                self._connection.send(Pong(message.sent_ns, session.clock.wall_ns()))
            case messages.RankStarted():
                slot = session.roster.start_rank(index, message)
                session.keep(slot)
                session.apply(ev.RankStarted(slot.incarnation, slot.place))
            case messages.RankExited():
                session.apply(ev.RankExited(ev.Incarnation(index, message.local_rank, message.attempt)))
            case messages.Salvaged():
                self._take_salvaged(message)
            case messages.TrainingStarted():
                session.start_training(message.started_ns)
            case messages.Interrupted():
                session.apply(ev.LauncherInterrupted(index, message.signal[:32], message.at_ns))
            case messages.NodeFiles():
                self._keep_files(message)
            case messages.NodeEnded():
                self._end(message)
            case _:
                raise RemoteProtocolError(f"a launcher does not send {type(message).__name__}")

    def lost(self) -> None:
        node = self._node
        if node.connection is self._connection:
            node.connection = None
            self._session.apply(ev.NodeLost(node.node_index))
            clock = self._session.clock
            clock.call_at(clock.now_s() + LOSS_GRACE_S, self._tell_loss)

    def _tell_unproven(self) -> None:
        """It has had the time to find the token in the run folder."""
        session, node = self._session, self._node
        if session.roster.nodes.get(node.node_index) is node and not node.has_proven:
            session.tell_owner(
                f"telemetry of {_name(node)} is not authenticated: it does not share this run's folder;"
                " set TRACEML_TOKEN or --token-file on all nodes"
            )

    def _tell_loss(self) -> None:
        """The grace after a lost connection is over; it may be back, or have reported its end before."""
        session, node = self._session, self._node
        if node.connection is None and node.node_index not in session.node_reports and not node.is_owner:
            session.tell_owner(f"{_name(node)}: its launcher has been out of reach for {LOSS_GRACE_S:g} s")

    def _take_salvaged(self, message: messages.Salvaged) -> None:
        incarnation = ev.Incarnation(self._node.node_index, message.local_rank, message.attempt)
        slot = self._session.roster.slots.get(incarnation)
        if slot is None:
            raise RemoteProtocolError(f"records of a rank that never started: {incarnation}")
        self._session.intake.take(slot, message.records, is_salvaged=True)

    def _keep_files(self, message: messages.NodeFiles) -> None:
        """Files of a node that shares no file system with us; bounded, and only below that node's own folder."""
        node = self._node
        node.has_sent_files = True
        for tail in message.tails:
            node.num_file_bytes += len(tail.data)
            if node.num_file_bytes > MAX_NODE_BYTES:
                self._session.warn(f"node {node.node_index} sent more files than are kept")
                return
            if not self._session.files.keep_tail(node.node_index, tail.path, tail.data):
                raise RemoteProtocolError(f"node {node.node_index} may not write {tail.path[:80]!r}")

    def _end(self, message: messages.NodeEnded) -> None:
        session, node, report = self._session, self._node, message.report
        check_report(node.node_index, report)
        if node.node_index not in session.node_reports and not node.is_owner:
            self._tell_failure(message)
        session.node_reports[node.node_index] = report
        session.store.put_meta(f"node_{node.node_index}", msgspec.json.encode(report).decode())
        if node.has_sent_files:
            session.files.write_json(f"{layout_node_dir(node.node_index)}/{NODE_FILE}", report)
        places = {}
        for end in report.ranks:
            slot = session.roster.from_report(node.node_index, end, report.host)
            slot.take_end(end, is_final=message.is_final)
            session.keep(slot)
            places[slot.incarnation] = slot.place
        if message.is_final and not node.is_owner:
            session.store.when_committed(self._acknowledge)
        session.apply(node_ended(report, is_final=message.is_final, places=places))

    def _tell_failure(self, message: messages.NodeEnded) -> None:
        """The owner's torchrun may sit in a barrier for minutes before it learns of it."""
        report = message.report
        if report.signal is not None:
            self._session.tell_owner(f"{_name(self._node)}: its torchrun was ended by {report.signal}")
        elif report.exit_code:
            self._session.tell_owner(f"{_name(self._node)}: its torchrun exited with code {report.exit_code}")

    def _acknowledge(self) -> None:
        self._connection.send(messages.Ack(messages.MARKER_STREAM, 0))


def _name(node: NodeSlot) -> str:
    return f"node {node.node_index} on {node.host}"
