"""The sender against a daemon on a plain socket: everything recorded arrives once, whatever that daemon does."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.processes import wait_until
from tests.harness.stub_daemon import Behaviour, StubDaemon
from traceml_client.courier import Courier
from traceml_client.dialogue import RankStory
from traceml_client.protocol import messages, ring
from traceml_client.protocol.columns import STEP_STREAM
from traceml_client.protocol.node import RankError
from traceml_client.recorder import Recorder
from traceml_client.sender import Sender

HELLO = messages.RankHello(
    version=messages.PROTOCOL_MAJOR,
    run="run-id",
    proof=b"",
    node_index=0,
    local_rank=1,
    attempt=0,
    rank=1,
    world_size=2,
    local_world_size=2,
    torch_restart_count=0,
    host="host",
    pid=4711,
    start_ticks=99,
    wall_minus_monotonic_ns=time.time_ns(),
)
ERROR = RankError(kind="main", type="ValueError", message="x", traceback="...", raised_ns=1, step=3)


class Rank:
    """A recorder and a sender of one rank, without the rest of the client."""

    def __init__(self, port: int, *, step_capacity: int = 4096, token: str = "") -> None:
        memory = bytearray(ring.ring_bytes(step_capacity, 64))
        ring.initialize(memoryview(memory), step_capacity, 64)
        self.recorder = Recorder(memoryview(memory))
        self.story = RankStory(hello=HELLO, token=token)
        self.faults: list[tuple[str, BaseException]] = []
        self.outages: list[OSError] = []
        self.courier = Courier(
            recorder=self.recorder,
            story=self.story,
            address=("127.0.0.1", port),
            report_fault=lambda kind, error: self.faults.append((kind, error)),
            report_unreachable=self.outages.append,
        )
        self.sender = Sender(
            recorder=self.recorder, courier=self.courier, handover=None, sample=lambda now_ns, is_whole: None
        )

    def record(self, count: int) -> None:
        for _ in range(count):
            number = self.recorder.reader.head(STEP_STREAM)
            self.recorder.record_step((0, number, 1, 2, 3, 4, 5, 6))

    def finish(self, *, budget_s: float = 5.0) -> bool:
        self.story.is_ending = True
        self.recorder.set_marker(1)
        return self.sender.finish(budget_s=budget_s)

    @property
    def num_stored(self) -> int:
        return self.recorder.reader.num_stored(STEP_STREAM)


@contextlib.contextmanager
def running(port: int, **options: object) -> Iterator[Rank]:
    rank = Rank(port, **options)  # type: ignore[arg-type]
    rank.sender.start(call)
    try:
        yield rank
    finally:
        rank.sender.finish(budget_s=0)


def call(run: Callable[[], None]) -> None:
    run()


def test_everything_arrives_once_and_is_acknowledged() -> None:
    with StubDaemon() as daemon, running(daemon.port) as rank:
        rank.record(1000)
        assert rank.finish()
    assert sorted(daemon.heard.records[STEP_STREAM].items()) == [(n, n) for n in range(1000)]
    assert daemon.heard.num_repeated == 0
    assert rank.num_stored == 1000
    (marker,) = daemon.heard.markers
    assert marker.next_seq == (1000, 0)
    assert rank.recorder.reader.word(ring.MARKER_WORD) == 2
    assert daemon.heard.largest_frame < 250 * 33 + 64


def test_who_it_is_is_proven_with_the_token() -> None:
    with StubDaemon(Behaviour(token="secret")) as daemon, running(daemon.port, token="secret") as rank:
        assert rank.finish()
    (hello,) = daemon.heard.hellos
    assert (hello.run, hello.node_index, hello.local_rank, hello.rank, hello.pid) == ("run-id", 0, 1, 1, 4711)


def test_records_leave_while_the_rank_lives() -> None:
    """A killed rank's daemon knows all but the last second."""
    with StubDaemon() as daemon, running(daemon.port) as rank:
        rank.record(10)
        daemon.wait_for(lambda heard: len(heard.records[STEP_STREAM]) == 10, "ten steps without an end")
        wait_until(lambda: rank.num_stored == 10, "acknowledged", within_s=5)


def test_error_is_told_at_once() -> None:
    with StubDaemon() as daemon, running(daemon.port) as rank:
        daemon.wait_for(lambda heard: heard.pings, "the rank is let in")
        before_s = time.monotonic()
        rank.story.errors = (ERROR,)
        rank.sender.wake()
        daemon.wait_for(lambda heard: heard.failures, "the error")
        assert time.monotonic() - before_s < 0.9, "it waited for the next tick"
        assert rank.finish()
    assert daemon.heard.failures[0].error == ERROR
    assert daemon.heard.markers[0].error == ERROR


def test_main_error_is_the_markers_also_after_a_threads() -> None:
    in_thread = RankError(kind="thread", type="OSError", message="y", traceback="", raised_ns=0)
    with StubDaemon() as daemon, running(daemon.port) as rank:
        rank.story.errors = (in_thread,)
        rank.sender.wake()
        daemon.wait_for(lambda heard: heard.failures, "the first error")
        rank.story.errors = (in_thread, ERROR)
        assert rank.finish()
    assert [failure.error for failure in daemon.heard.failures] == [in_thread, ERROR]
    assert daemon.heard.markers[0].error == ERROR


def test_clock_offset_is_measured_and_told() -> None:
    with StubDaemon() as daemon, running(daemon.port):
        daemon.wait_for(lambda heard: len(heard.pings) == 2, "two pings")
    first, second, *_ = daemon.heard.pings
    assert first.clock_bound_ns == -1
    its_wall_ns = HELLO.wall_minus_monotonic_ns + time.monotonic_ns()
    assert abs(second.clock_offset_ns - (time.time_ns() - its_wall_ns)) < 5_000_000_000
    assert 0 <= second.clock_bound_ns < 5_000_000_000


def test_rank_that_was_stopped_for_a_minute_reads_before_it_judges() -> None:
    for _ in range(50):
        with StubDaemon() as daemon:
            rank = Rank(daemon.port)
            try:
                if not _is_answer_unread(rank, daemon):
                    continue
                rank.courier.tick(now_ns=60 * 10**9)
                assert rank.outages == []
                assert rank.courier.is_welcome
                rank.courier.tick(now_ns=120 * 10**9)
                assert rank.courier.is_welcome, "no ping is open"
                return
            finally:
                rank.courier.close()
                rank.sender.abandon()
    pytest.fail("the answer to a ping was never caught before it was read")


def _is_answer_unread(rank: Rank, daemon: StubDaemon) -> bool:
    """Whether the daemon's answer to the first ping lies in the socket, as if the rank had been stopped just then."""
    rank.courier.turn(now_ns=0)
    while not daemon.heard.pings:
        assert _is_socket_ready(rank, within_ms=5000)
        rank.courier.turn(now_ns=1)
    return _is_socket_ready(rank, within_ms=200)


def _is_socket_ready(rank: Rank, *, within_ms: int) -> bool:
    assert rank.courier.interest is not None
    poller = select.poll()
    poller.register(*rank.courier.interest)
    return bool(poller.poll(within_ms))


def test_cut_connection_is_resumed_without_loss() -> None:
    with StubDaemon() as daemon, running(daemon.port) as rank:
        rank.record(500)
        daemon.wait_for(lambda heard: len(heard.records[STEP_STREAM]) >= 499, "the first steps")
        daemon.cut()
        rank.record(500)
        daemon.wait_for(lambda heard: len(heard.hellos) == 2, "a second connection")
        assert rank.finish()
    assert sorted(daemon.heard.records[STEP_STREAM]) == list(range(1000))
    assert rank.faults == []


def test_killed_daemon_gets_everything_after_its_restart() -> None:
    with StubDaemon(Behaviour(is_acking=False)) as daemon, running(daemon.port) as rank:
        rank.record(300)
        daemon.wait_for(lambda heard: len(heard.records[STEP_STREAM]) >= 299, "the first steps")
        daemon.stop()
        daemon.heard.records[STEP_STREAM].clear()  # none was committed
        rank.record(300)
        wait_until(lambda: len(rank.outages) >= 2, "it tries again", within_s=10)
        assert rank.num_stored == 0
        daemon.set(is_acking=True)
        daemon.restart()
        assert rank.finish()
    assert sorted(daemon.heard.records[STEP_STREAM]) == list(range(600))
    assert rank.num_stored == 600


def test_lost_marker_acknowledgement_is_asked_for_again() -> None:
    with StubDaemon(Behaviour(is_acking=False)) as daemon, running(daemon.port) as rank:
        rank.record(5)

        def cut_at_the_marker(message: messages.ToDaemon) -> bytes | None:
            if isinstance(message, messages.RankFinished) and len(daemon.heard.markers) == 1:
                daemon.behaviour.is_acking = True
                daemon.cut()
            return None

        daemon.set(answers=cut_at_the_marker)
        assert rank.finish()
    assert len(daemon.heard.markers) == 2


def test_daemon_that_reads_nothing_costs_the_rank_nothing() -> None:
    """A stopped process: connections open, nothing is read, nothing blocks, the ring overwrites and counts."""
    with StubDaemon() as daemon, running(daemon.port) as rank:
        daemon.wait_for(lambda heard: heard.pings, "the rank is let in")
        daemon.set(is_reading=False)
        rank.record(20_000)  # five times the ring, and more than the socket's buffers hold
        started_s = time.monotonic()
        assert not rank.finish(budget_s=0.3)
        assert time.monotonic() - started_s < 2
        daemon.cut()


def test_overwritten_records_are_counted_once() -> None:
    with StubDaemon() as daemon, running(daemon.port, step_capacity=256) as rank:
        daemon.wait_for(lambda heard: heard.pings, "the rank is let in")
        daemon.stop()
        wait_until(lambda: rank.outages, "it has noticed", within_s=5)
        rank.record(1000)
        daemon.restart()
        daemon.wait_for(lambda heard: len(heard.hellos) == 2, "a second connection")
        daemon.cut()
        assert rank.finish()
    arrived = sorted(daemon.heard.records[STEP_STREAM])
    assert arrived == list(range(1000 - 255, 1000))
    assert rank.recorder.reader.num_dropped(STEP_STREAM) == 1000 - 255
    assert daemon.heard.markers[-1].next_seq == (1000, 0)


def test_refusal_for_good_is_said_once_and_ends_the_attempts() -> None:
    with StubDaemon(Behaviour(refusal=(messages.BAD_TOKEN, "not proven"))) as daemon, running(daemon.port) as rank:
        wait_until(lambda: rank.faults, "told", within_s=5)
        assert not rank.finish(), "there is nobody to wait for"
    assert [str(error) for _, error in rank.faults] == ["the aggregator refused us: bad_token: not proven"]
    assert len(daemon.heard.hellos) == 1


@pytest.mark.parametrize("reason", [messages.SLOT_TAKEN, messages.UNKNOWN_NODE, messages.TOO_MANY])
def test_refusal_for_now_is_tried_again(reason: str) -> None:
    with StubDaemon(Behaviour(refusal=(reason, "not now"))) as daemon, running(daemon.port) as rank:
        daemon.wait_for(lambda heard: len(heard.hellos) >= 2, "a second attempt")
        daemon.set(refusal=None)
        assert rank.finish()
    assert rank.faults == []


def test_other_major_version_is_refused_with_both_versions_named() -> None:
    with StubDaemon(Behaviour(version=99)) as daemon, running(daemon.port) as rank:
        wait_until(lambda: rank.faults, "told", within_s=5)
    assert "version 99" in str(rank.faults[0][1])
    assert f"version {messages.PROTOCOL_MAJOR}" in str(rank.faults[0][1])
    assert daemon.heard.hellos == []


def test_junk_ends_the_connection_and_the_rank_comes_back() -> None:
    with StubDaemon() as daemon, running(daemon.port) as rank:
        daemon.set(answers=lambda message: b"\xff" * 64 if isinstance(message, messages.Ping) else None)
        wait_until(lambda: rank.faults, "told", within_s=5)
        daemon.set(answers=lambda message: None)
        rank.record(10)
        assert rank.finish()
    assert sorted(daemon.heard.records[STEP_STREAM]) == list(range(10))


def test_nobody_listens(tmp_path: Path) -> None:
    with StubDaemon() as daemon:
        port = daemon.port
    with running(port) as rank:
        rank.record(10)
        wait_until(lambda: len(rank.outages) >= 2, "it tries again", within_s=10)
        assert not rank.finish(budget_s=0.1)
    assert rank.recorder.reader.head(STEP_STREAM) == 10
    assert rank.num_stored == 0


def test_finish_is_idempotent_and_wakes_nobody_afterwards() -> None:
    with StubDaemon() as daemon, running(daemon.port) as rank:
        rank.record(1)
        assert rank.finish()
        assert rank.finish()
        rank.sender.wake()
    assert len(daemon.heard.markers) == 1


def test_sender_that_was_never_started_ends_at_once() -> None:
    rank = Rank(1)
    started_s = time.monotonic()
    assert not rank.finish(budget_s=5)
    assert time.monotonic() - started_s < 1
    rank.sender.abandon()
