"""A rank's side of one connection to the daemon, without I/O: bytes in, frames out.

    CHALLENGE  ->  WELCOME  ->  OPEN          each waits for the daemon's message of that name
         \\________/ -> REFUSED               the daemon does not want us; `refusal` says why

In OPEN the order on the wire is: errors and pings as they come, once a second the records there are, the marker after
the last of them. Records are not sent as they come: every acknowledgement would then be answered by a small frame.
Times are the rank's monotonic clock; a wall time is that plus a constant, so that a stepped clock disturbs nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from traceml_client.outbox import Outbox
from traceml_client.protocol import messages
from traceml_client.protocol.clock_offset import ClockOffset
from traceml_client.protocol.codec import decode_from_daemon, encode
from traceml_client.protocol.errors import Refused, RemoteProtocolError
from traceml_client.protocol.frames import FrameReader
from traceml_client.protocol.node import RankError
from traceml_client.protocol.proof import prove

_MAX_HANDSHAKE_NS = 5_000_000_000
_MAX_SILENCE_NS = 15_000_000_000
"""For a ping's answer. A launcher kills its own silent daemon after 10 s; before that a new connection helps nobody."""


@dataclass(slots=True, kw_only=True)
class RankStory:
    """What a rank has to say beside its records. It outlives connections."""

    hello: messages.RankHello
    """Without a proof."""
    token: str
    errors: tuple[RankError, ...] = ()
    """As they were raised; only ever appended to."""
    notes: tuple[str, ...] = ()
    is_ending: bool = False
    ended_ns: int = 0
    """Wall clock, once `is_ending`."""
    exit_code: int | None = None


class State(enum.Enum):
    CHALLENGE = enum.auto()
    WELCOME = enum.auto()
    OPEN = enum.auto()
    REFUSED = enum.auto()


class Dialogue:
    """One connection's conversation."""

    def __init__(self, story: RankStory, outbox: Outbox, clock: ClockOffset, *, now_ns: int) -> None:
        self.state = State.CHALLENGE
        self.refusal: Refused | None = None
        self.is_marker_stored = False
        self._story = story
        self._outbox = outbox
        self._clock = clock
        self._reader = FrameReader()
        self._begun_ns = now_ns
        self._hello: messages.RankHello | None = None
        self._num_errors_sent = 0
        self._is_marker_sent = False
        self._is_ping_due = True
        self._are_records_due = True
        self._pinged_ns: int | None = None
        """Monotonic time of the ping that is not answered yet."""

    def receive(self, data: bytes, *, now_ns: int) -> None:
        """Take what the daemon sent.

        Raises:
            RemoteProtocolError: it broke the rules; the connection is of no further use.
        """
        for payload in self._reader.feed(data):
            self._take(decode_from_daemon(payload), now_ns)

    def tick(self, *, now_ns: int) -> None:
        """Once a second: a ping and the new records are due, and silence is noticed.

        Raises:
            TimeoutError: the daemon has been silent for too long.
        """
        self._is_ping_due = self._are_records_due = True
        if self.state in (State.CHALLENGE, State.WELCOME) and now_ns - self._begun_ns > _MAX_HANDSHAKE_NS:
            raise TimeoutError("it took our connection and says nothing")
        if self._pinged_ns is not None and now_ns - self._pinged_ns > _MAX_SILENCE_NS:
            raise TimeoutError("it does not answer pings")

    def next_frame(self, *, now_ns: int) -> bytes:
        """The next whole frame to send, empty if there is none now. What is returned counts as sent."""
        message = self._next_message(now_ns)
        return b"" if message is None else encode(message)

    def _next_message(self, now_ns: int) -> messages.FromRank | None:
        if self._hello is not None:
            hello, self._hello = self._hello, None
            return hello
        if self.state is not State.OPEN:
            return None
        if self._num_errors_sent < len(self._story.errors):
            self._num_errors_sent += 1
            return messages.RankFailed(self._story.errors[self._num_errors_sent - 1])
        if self._is_ping_due and self._pinged_ns is None:
            self._is_ping_due, self._pinged_ns = False, now_ns
            return messages.Ping(self._wall_ns(now_ns), self._clock.offset_ns, self._clock.bound_ns)
        return self._next_records(now_ns) or self._next_marker()

    def _next_records(self, now_ns: int) -> messages.Records | None:
        is_ending = self._story.is_ending
        if not (self._are_records_due or is_ending):
            return None
        records = self._outbox.next_records(now_ns=now_ns, is_ending=is_ending)
        self._are_records_due = records is not None
        return records

    def _next_marker(self) -> messages.RankFinished | None:
        story = self._story
        if self._is_marker_sent or not story.is_ending or not self._outbox.is_empty():
            return None
        self._is_marker_sent = True
        error = next((one for one in story.errors if one.kind == "main"), story.errors[0] if story.errors else None)
        return messages.RankFinished(story.ended_ns, self._outbox.heads(), story.exit_code, error, story.notes)

    def _take(self, message: messages.FromDaemon, now_ns: int) -> None:
        match self.state, message:
            case State.CHALLENGE, messages.Challenge():
                self._answer(message)
            case State.WELCOME, messages.Welcome():
                self._enter(message)
            case State.OPEN, messages.Ack(stream=messages.MARKER_STREAM):
                self._take_marker_ack()
            case State.OPEN, messages.Ack():
                self._outbox.acknowledge(message.stream, message.next_seq)
            case State.OPEN, messages.Pong():
                self._take_pong(message, now_ns)
            case _, messages.Refused():
                self._refuse(message.reason, message.detail)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} out of turn, in state {self.state.name}")

    def _answer(self, challenge: messages.Challenge) -> None:
        if challenge.version != messages.PROTOCOL_MAJOR:
            versions = f"it speaks version {challenge.version}, this rank version {messages.PROTOCOL_MAJOR}"
            self._refuse(messages.WRONG_VERSION, versions)
            return
        who = self._story.hello
        claims = ("rank", who.run, who.node_index, who.local_rank, who.attempt)
        self._hello = msgspec.structs.replace(who, proof=prove(self._story.token, challenge.nonce, *claims))
        self.state = State.WELCOME

    def _enter(self, welcome: messages.Welcome) -> None:
        """From now on we belong to this run: a reconnect must not end in the daemon's next one."""
        self._story.hello = msgspec.structs.replace(self._story.hello, run=welcome.run_id)
        self._outbox.resume(welcome.next_seq)
        self.state = State.OPEN

    def _refuse(self, reason: str, detail: str) -> None:
        self.refusal = Refused(reason, detail)
        self.state = State.REFUSED

    def _take_marker_ack(self) -> None:
        if not self._is_marker_sent:
            raise RemoteProtocolError("the aggregator acknowledges a marker that was never sent")
        self._outbox.acknowledge_all()
        self.is_marker_stored = True

    def _take_pong(self, pong: messages.Pong, now_ns: int) -> None:
        if self._pinged_ns is None or pong.sent_ns != self._wall_ns(self._pinged_ns):
            raise RemoteProtocolError("the aggregator answers a ping that was never sent")
        self._clock.measure(sent_ns=pong.sent_ns, daemon_ns=pong.daemon_ns, received_ns=self._wall_ns(now_ns))
        self._pinged_ns = None

    def _wall_ns(self, now_ns: int) -> int:
        return now_ns + self._story.hello.wall_minus_monotonic_ns
