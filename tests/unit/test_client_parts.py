"""The client's small parts: clock offset, back-off, outbox, held descriptors, what an error looks like."""

from __future__ import annotations

import mmap
import os
import resource
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from traceml_client import crash
from traceml_client.backoff import Backoff
from traceml_client.descriptors import HeldDescriptor, lowest_number, map_shared
from traceml_client.gpu_samplers import DeviceSampler
from traceml_client.node_samplers import NodeSampler
from traceml_client.outbox import Outbox
from traceml_client.protocol import ring
from traceml_client.protocol.clock_offset import ClockOffset
from traceml_client.protocol.columns import DEVICE_MEMORY_SAMPLE
from traceml_client.protocol.node import RankError
from traceml_client.recorder import Recorder
from traceml_client.samplers import ProcessSampler

MINUTE_NS = 60_000_000_000


def test_offset_is_the_middle_and_its_bound_half_the_round_trip() -> None:
    clock = ClockOffset()
    clock.measure(sent_ns=1000, daemon_ns=5000, received_ns=1400)
    assert (clock.offset_ns, clock.bound_ns) == (3800, 200)


def test_tighter_measurement_replaces_a_looser_one_only() -> None:
    clock = ClockOffset()
    clock.measure(sent_ns=0, daemon_ns=100, received_ns=20)
    clock.measure(sent_ns=50, daemon_ns=999, received_ns=90)
    assert (clock.offset_ns, clock.bound_ns) == (90, 10)
    clock.measure(sent_ns=100, daemon_ns=300, received_ns=104)
    assert (clock.offset_ns, clock.bound_ns) == (198, 2)


def test_old_measurement_gives_way_to_any_newer_one() -> None:
    clock = ClockOffset()
    clock.measure(sent_ns=0, daemon_ns=0, received_ns=2)
    clock.measure(sent_ns=2 * MINUTE_NS, daemon_ns=2 * MINUTE_NS + 500, received_ns=2 * MINUTE_NS + 1000)
    assert clock.bound_ns == 500


def test_answer_from_before_the_question_is_ignored() -> None:
    clock = ClockOffset()
    clock.measure(sent_ns=10, daemon_ns=0, received_ns=9)
    assert clock.bound_ns == -1


def test_waits_double_up_to_two_seconds_and_differ() -> None:
    backoff = Backoff()
    waits = [backoff.next_wait_s() for _ in range(8)]
    for wait, limit in zip(waits, [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2], strict=True):
        assert limit / 2 <= wait <= limit
    backoff.reset()
    assert backoff.next_wait_s() <= 0.1
    first_waits = set()
    for _ in range(20):
        backoff.reset()
        first_waits.add(backoff.next_wait_s())
    assert len(first_waits) > 5


def test_record_that_is_overtaken_while_it_is_copied_is_not_sent() -> None:
    """The ring is full: the slot that the rank writes next is never read."""
    memory = bytearray(ring.ring_bytes(8, 8))
    ring.initialize(memoryview(memory), 8, 8)
    recorder = Recorder(memoryview(memory))
    outbox = Outbox(recorder)
    for number in range(20):
        recorder.record_step((0, number, 0, 0, 0, 0, 0, 0))
    records = outbox.next_records(now_ns=10**12, is_ending=True)
    assert records is not None
    assert (records.first_seq, records.count) == (13, 7)
    assert recorder.reader.num_dropped(0) == 13
    assert outbox.is_empty()


def test_held_descriptor_is_high_and_closed_on_exec() -> None:
    held = HeldDescriptor(os.open("/dev/null", os.O_RDONLY))
    assert held.fd >= lowest_number() >= 3
    assert not os.get_inheritable(held.fd)
    held.close()
    held.close()
    assert not held.is_intact()


def test_number_that_the_script_took_over_is_left_alone(tmp_path: Path) -> None:
    held = HeldDescriptor(os.open("/dev/null", os.O_RDONLY))
    mine = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.dup2(mine, held.fd)
    taken = held.fd
    assert not held.is_intact()
    held.close()
    assert os.fstat(taken).st_ino == os.fstat(mine).st_ino
    os.close(taken)
    os.close(mine)


def test_pipe_is_recognised_at_its_other_end() -> None:
    read_end, write_end = os.pipe()
    held = HeldDescriptor(read_end)
    assert held.is_behind(write_end)
    assert not held.is_behind(0)
    held.close()
    assert not held.is_behind(-1)
    os.close(write_end)


def test_low_limit_of_descriptors_leaves_room() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert lowest_number() == 192
        resource.setrlimit(resource.RLIMIT_NOFILE, (70, hard))
        held = HeldDescriptor(os.open("/dev/null", os.O_RDONLY))
        assert held.is_intact()
        held.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_mapping_takes_no_low_number() -> None:
    fd = os.memfd_create("ring")
    os.ftruncate(fd, mmap.PAGESIZE)
    before = set(os.listdir("/proc/self/fd"))
    mapping = map_shared(fd, mmap.PAGESIZE)
    added = {int(number) for number in set(os.listdir("/proc/self/fd")) - before}
    assert all(number >= lowest_number() for number in added)
    mapping[0] = 7
    assert os.pread(fd, 1, 0) == b"\x07"
    mapping.close()
    os.close(fd)


def test_error_text_is_what_python_prints() -> None:
    try:
        raise ValueError("bad\nvalue") from OSError(2, "no")
    except ValueError as error:
        described = crash.describe(error, kind="main", raised_ns=5, step=3, phase="forward")
    assert (described.type, described.message) == ("ValueError", "bad\nvalue")
    assert "The above exception was the direct cause" in described.traceback
    assert described.traceback.endswith("ValueError: bad\nvalue\n")
    assert (described.step, described.phase, described.raised_ns) == (3, "forward", 5)


def test_type_is_named_with_its_module() -> None:
    described = crash.describe(socket.gaierror(1, "x"), kind="thread", raised_ns=0, step=0, phase=None)
    assert described.type == "socket.gaierror"
    assert crash.torchelastic_form(described)["message"]["message"] == "gaierror: [Errno 1] x"


@pytest.mark.parametrize("text", ["", "a" * 100_000, '\\"\n' * 30_000, "\u20ac" * 50_000, "\x00" * 20_000])
@pytest.mark.parametrize("max_bytes", [6144, 7168])
def test_error_always_fits(text: str, max_bytes: int) -> None:
    error = RankError(kind="main", type="E", message=text[:2000], traceback=text + "\nE: the end\n", raised_ns=1)
    data = crash.fit(error, max_bytes)
    assert len(data) <= max_bytes
    back = msgspec.json.decode(data, type=RankError)
    assert back.traceback.endswith("E: the end\n")


def test_samplers_say_nothing_once_their_file_is_closed() -> None:
    process, node = ProcessSampler(), NodeSampler()
    assert len(process.sample()) == len(node.sample()) == 1
    process.close()
    node.close()
    assert process.sample() == node.sample() == []


def test_devices_are_read_only_where_the_script_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA here: a stand-in for the one module that is read, which fails on everything that is not expected."""
    used = {
        "allocated_bytes.all.current": 1,
        "reserved_bytes.all.current": 2,
        "allocated_bytes.all.peak": 3,
        "reserved_bytes.all.peak": 4,
    }
    cuda = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert DeviceSampler().sample() == [], "never asked more than whether it is initialised"
    cuda.is_initialized = lambda: True
    cuda.device_count = lambda: 2
    cuda.memory_stats = lambda index: used if index == 1 else {}
    cuda.get_device_properties = lambda index: SimpleNamespace(total_memory=80)
    assert DeviceSampler().sample() == [(DEVICE_MEMORY_SAMPLE, (1, 1, 2, 3, 4, 80))]
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert DeviceSampler().sample() == [], "torch is being imported"
    monkeypatch.delitem(sys.modules, "torch")
    assert DeviceSampler().sample() == []


def test_cpu_of_the_node_needs_two_looks() -> None:
    node = NodeSampler()
    (first,) = node.sample()
    assert first.values[0] == -1
    while (second := node.sample()[0]).values[0] == -1:
        pass
    assert 0 <= second.values[0] <= 1000
    used, total = second.values[1:3]
    assert 0 < used <= total
    node.close()
