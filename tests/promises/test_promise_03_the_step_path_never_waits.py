"""Promise 3: whatever the daemon does, a step costs what it costs, and memory does not grow.

That the sender gives up in time at the end is in tests/client/test_sender.py.
"""

from __future__ import annotations

import time
import tracemalloc
from array import array
from collections.abc import Callable

import pytest

from tests.client.test_sender import running
from tests.harness.processes import wait_until
from tests.harness.stub_daemon import StubDaemon
from traceml_client.protocol.columns import STEP_STREAM

NUM_STEPS = 50_000
"""Twelve times what the ring of these tests holds, and far more than the buffers of a socket."""
MAX_GROWTH_BYTES = 1 << 20
P99_NS = 1_000_000
OF_CLIENT = [
    tracemalloc.Filter(True, "*/traceml_client/*"),
    tracemalloc.Filter(False, "*/traceml_client/protocol/co*.py"),
]
"""Columns and codec are left out: the stand-in for the daemon decodes with them, and keeps what it got."""


def serve_well(daemon: StubDaemon) -> None:
    daemon.set(is_reading=True)


def go_down(daemon: StubDaemon) -> None:
    daemon.stop()


def stop_reading(daemon: StubDaemon) -> None:
    """As SIGSTOP does: connections stay, nobody reads."""
    daemon.set(is_reading=False)


def answer_nothing(daemon: StubDaemon) -> None:
    daemon.set(is_acking=False)


STATES = [serve_well, go_down, stop_reading, answer_nothing]


def step_times(change: Callable[[StubDaemon], None]) -> tuple[list[int], int]:
    """Nanoseconds of each record, sorted, and by how many bytes the client's own memory grew."""
    with StubDaemon() as daemon, running(daemon.port) as rank:
        daemon.wait_for(lambda heard: heard.pings, "the rank is let in")
        rank.record(5000)
        change(daemon)
        step, head = rank.recorder.record_step, rank.recorder.reader.head(STEP_STREAM)
        tracemalloc.start()
        times = array("q", bytes(8 * NUM_STEPS))
        for index in range(NUM_STEPS):
            started_ns = time.perf_counter_ns()
            step((0, head + index, 1, 2, 3, 4, 5, 6))
            times[index] = time.perf_counter_ns() - started_ns
        grown = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(OF_CLIENT).traces)
        tracemalloc.stop()
        if change is go_down:
            wait_until(lambda: rank.outages, "it has noticed", within_s=5)
            daemon.restart()
        daemon.cut()
        assert rank.recorder.reader.head(STEP_STREAM) == 5000 + NUM_STEPS
    return sorted(times), grown


@pytest.mark.parametrize("change", STATES)
def test_no_state_of_the_daemon_makes_memory_grow(change: Callable[[StubDaemon], None]) -> None:
    times, grown = step_times(change)
    assert grown < MAX_GROWTH_BYTES
    assert times[NUM_STEPS // 2] < 20 * P99_NS


@pytest.mark.long
@pytest.mark.parametrize("change", STATES)
def test_no_state_of_the_daemon_costs_a_step_a_millisecond(change: Callable[[StubDaemon], None]) -> None:
    times, _ = step_times(change)
    p99_ns = times[NUM_STEPS * 99 // 100]
    print(f"{change.__name__}: p50 {times[NUM_STEPS // 2] / 1000:.1f} us, p99 {p99_ns / 1000:.1f} us")
    assert p99_ns < P99_NS
