"""A rank's side of the conversation, without a socket: what it says, in which order, and what it does not accept."""

from __future__ import annotations

import pytest

from traceml_client.dialogue import Dialogue, RankStory, State
from traceml_client.outbox import Outbox
from traceml_client.protocol import messages, ring
from traceml_client.protocol.clock_offset import ClockOffset
from traceml_client.protocol.codec import decode_to_daemon, encode
from traceml_client.protocol.errors import FrameTooLarge, RemoteProtocolError
from traceml_client.protocol.frames import FrameReader
from traceml_client.protocol.node import RankError
from traceml_client.protocol.proof import is_proven
from traceml_client.recorder import Recorder

SECOND = 1_000_000_000
NONCE = b"0123456789abcdef"
ERROR = RankError(kind="main", type="E", message="", traceback="", raised_ns=0)


class Conversation:
    """A dialogue and the other end of its wire. Time is a number that the test moves."""

    def __init__(self, *, run: str = "", node_index: int = -1, attempt: int = -1) -> None:
        memory = bytearray(ring.ring_bytes(1024, 16))
        ring.initialize(memoryview(memory), 1024, 16)
        self.recorder = Recorder(memoryview(memory))
        hello = messages.RankHello(
            version=messages.PROTOCOL_MAJOR,
            run=run,
            proof=b"",
            node_index=node_index,
            local_rank=0,
            attempt=attempt,
            rank=0,
            world_size=1,
            local_world_size=1,
            torch_restart_count=0,
            host="h",
            pid=1,
            start_ticks=2,
            wall_minus_monotonic_ns=10 * SECOND,
        )
        self.story = RankStory(hello=hello, token="secret")
        self.outbox = Outbox(self.recorder)
        self.clock = ClockOffset()
        self.now_ns = 0
        self.connect()

    def connect(self) -> None:
        self.dialogue = Dialogue(self.story, self.outbox, self.clock, now_ns=self.now_ns)

    def hear(self, *spoken: messages.FromDaemon) -> None:
        self.dialogue.receive(b"".join(map(encode, spoken)), now_ns=self.now_ns)

    def said(self) -> list[messages.ToDaemon]:
        """Everything that it has to say now."""
        frames = iter(lambda: self.dialogue.next_frame(now_ns=self.now_ns), b"")
        return [decode_to_daemon(payload) for frame in frames for payload in FrameReader().feed(frame)]

    def open(self, next_seq: tuple[int, int] = (0, 0)) -> messages.RankHello:
        self.hear(messages.Challenge(messages.PROTOCOL_MAJOR, NONCE))
        (hello,) = self.said()
        assert isinstance(hello, messages.RankHello)
        self.hear(messages.Welcome("run-7", "run", 0, 0, next_seq))
        return hello

    def record(self, count: int) -> None:
        for _ in range(count):
            self.recorder.record_step((0, self.now_ns, 1, 1, 1, 1, 1, 6))


@pytest.fixture
def talk() -> Conversation:
    return Conversation()


def test_says_nothing_before_it_is_challenged(talk: Conversation) -> None:
    talk.record(5)
    assert talk.said() == []


def test_proves_who_it_is_for_this_connection(talk: Conversation) -> None:
    hello = talk.open()
    assert is_proven("secret", NONCE, hello.proof, "rank", "", -1, 0, -1)
    assert hello.wall_minus_monotonic_ns == 10 * SECOND


def test_remembers_its_run_and_never_numbers_itself(talk: Conversation) -> None:
    """A direct launch's daemon knows the process again; a node index from it would be taken for a launcher's."""
    talk.open()
    talk.connect()
    again = talk.open()
    assert (again.run, again.node_index, again.attempt) == ("run-7", -1, -1)


def test_order_errors_ping_records_marker(talk: Conversation) -> None:
    talk.record(300)
    talk.story.errors = (ERROR,)
    talk.story.is_ending = True
    talk.open()
    said = talk.said()
    assert [type(one).__name__ for one in said] == ["RankFailed", "Ping", "Records", "Records", "RankFinished"]
    assert [(one.first_seq, one.count) for one in said if isinstance(one, messages.Records)] == [(0, 250), (250, 50)]


def test_marker_waits_for_the_end_and_is_said_once(talk: Conversation) -> None:
    talk.open()
    talk.said()
    assert talk.said() == []
    talk.story.is_ending = True
    assert [type(one) for one in talk.said()] == [messages.RankFinished]
    assert talk.said() == []


def test_records_wait_for_the_second_and_not_for_the_daemon(talk: Conversation) -> None:
    talk.open()
    talk.said()
    talk.now_ns = SECOND
    talk.record(2)
    talk.hear(messages.Ack(0, 0))
    assert talk.said() == []
    talk.record(600)
    talk.now_ns = 2 * SECOND
    talk.dialogue.tick(now_ns=talk.now_ns)
    assert [one.count for one in talk.said() if isinstance(one, messages.Records)] == [250, 250, 102]


def test_last_step_is_held_back_while_it_may_be_amended(talk: Conversation) -> None:
    talk.open()
    talk.record(3)
    assert [one.count for one in talk.said() if isinstance(one, messages.Records)] == [2]
    talk.recorder.amend_step((0, 1, 1, 1, 1, 1, 9, 14))
    talk.now_ns = SECOND
    talk.dialogue.tick(now_ns=SECOND)
    (late,) = talk.said()
    assert isinstance(late, messages.Records)
    assert (late.first_seq, late.count) == (2, 1)


def test_last_step_is_not_held_back_at_the_end(talk: Conversation) -> None:
    talk.open()
    talk.record(3)
    talk.story.is_ending = True
    assert [one.count for one in talk.said() if isinstance(one, messages.Records)] == [3]


def test_acknowledged_means_stored(talk: Conversation) -> None:
    talk.record(3)
    talk.now_ns = SECOND
    talk.open()
    talk.said()
    assert talk.recorder.reader.num_stored(0) == 0
    talk.hear(messages.Ack(0, 2))
    assert talk.recorder.reader.num_stored(0) == 2
    talk.hear(messages.Ack(0, 1))
    assert talk.recorder.reader.num_stored(0) == 2


def test_marker_acknowledged_means_everything_stored(talk: Conversation) -> None:
    talk.record(3)
    talk.story.is_ending = True
    talk.open()
    talk.said()
    talk.hear(messages.Ack(messages.MARKER_STREAM, 0))
    assert talk.dialogue.is_marker_stored
    assert talk.recorder.reader.num_stored(0) == 3


def test_goes_on_where_the_daemon_stands(talk: Conversation) -> None:
    talk.record(10)
    talk.now_ns = SECOND
    talk.open()
    talk.said()
    talk.connect()
    talk.open(next_seq=(4, 0))
    (again,) = [one for one in talk.said() if isinstance(one, messages.Records)]
    assert (again.first_seq, again.count) == (4, 6)


def test_ping_is_one_at_a_time_and_measures(talk: Conversation) -> None:
    talk.open()
    (ping,) = talk.said()
    assert ping == messages.Ping(10 * SECOND, 0, -1)
    talk.dialogue.tick(now_ns=SECOND)
    assert talk.said() == []
    talk.now_ns = SECOND + 200
    talk.hear(messages.Pong(10 * SECOND, 11 * SECOND + 5000))
    (second,) = talk.said()
    # Sent at 10 s, back at 11.0000002 s of our wall clock.
    assert second == messages.Ping(11 * SECOND + 200, 5000 + SECOND // 2 - 100, SECOND // 2 + 100)


def test_silence_is_noticed(talk: Conversation) -> None:
    talk.open()
    talk.said()
    talk.dialogue.tick(now_ns=14 * SECOND)
    with pytest.raises(TimeoutError, match="does not answer pings"):
        talk.dialogue.tick(now_ns=16 * SECOND)


def test_connection_that_nobody_serves_is_given_up(talk: Conversation) -> None:
    talk.dialogue.tick(now_ns=4 * SECOND)
    with pytest.raises(TimeoutError, match="says nothing"):
        talk.dialogue.tick(now_ns=6 * SECOND)


def test_refusal_is_kept_with_its_reason(talk: Conversation) -> None:
    talk.hear(messages.Challenge(messages.PROTOCOL_MAJOR, NONCE))
    talk.said()
    talk.hear(messages.Refused(messages.WRONG_RUN, "another one"))
    assert talk.dialogue.state is State.REFUSED
    assert talk.dialogue.refusal is not None
    assert talk.dialogue.refusal.reason == messages.WRONG_RUN
    assert talk.said() == []


def test_other_major_version_ends_it(talk: Conversation) -> None:
    talk.hear(messages.Challenge(messages.PROTOCOL_MAJOR + 1, NONCE))
    assert talk.dialogue.state is State.REFUSED
    assert talk.said() == []


WELCOME = messages.Welcome("r", "r", 0, 0, (0, 0))


OUT_OF_TURN = [
    ("welcome before the hello", False, encode(WELCOME)),
    ("ack before the hello", False, encode(messages.Ack(0, 0))),
    ("second challenge", True, encode(messages.Challenge(1, NONCE))),
    ("second welcome", True, encode(WELCOME)),
    ("ack of what was never sent", True, encode(messages.Ack(0, 1))),
    ("ack of no stream", True, encode(messages.Ack(7, 0))),
    ("ack of a negative stream", True, encode(messages.Ack(-1, 0))),
    ("ack of no marker", True, encode(messages.Ack(messages.MARKER_STREAM, 0))),
    ("pong to no ping", True, encode(messages.Pong(1, 1))),
    ("a launcher's message", True, encode(messages.RunFinalized("complete", None))),
    ("junk", True, b"\x02\x00\x00\x00\xc1\xc1"),
    ("a rank's message", True, encode(messages.Ping(1))),
]


@pytest.mark.parametrize(("name", "is_open", "data"), OUT_OF_TURN, ids=lambda value: str(value)[:30])
def test_broken_rules_end_the_connection(talk: Conversation, name: str, is_open: bool, data: bytes) -> None:
    if is_open:
        talk.open()
    with pytest.raises(RemoteProtocolError):
        talk.dialogue.receive(data, now_ns=0)


def test_frame_over_the_limit_ends_the_connection(talk: Conversation) -> None:
    with pytest.raises(FrameTooLarge):
        talk.dialogue.receive(b"\xff\xff\xff\xff", now_ns=0)


@pytest.mark.parametrize("next_seq", [(1, 0), (-1, 0), (0, 9)])
def test_daemon_that_knows_more_than_was_recorded_is_not_ours(talk: Conversation, next_seq: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="wants to go on"):
        talk.open(next_seq)
