"""The recorder's promises: whole records only, one writer a word, nothing written once it is off."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tests.client.rings import new_ring, read_steps
from traceml_client.protocol import ring
from traceml_client.protocol.columns import PROCESS_SAMPLE, SAMPLE_STREAM, STEP_STREAM
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.recorder import Recorder


def step(number: int) -> tuple[int, int, int, int, int, int, int, int]:
    return (0, 1000 * number, number, 0, 2 * number, 3 * number, 4 * number, 100 * number)


def test_steps_come_back_in_order_with_nulls() -> None:
    recorder = Recorder(new_ring())
    recorder.record_step(step(1))
    recorder.record_step((2, 7, -1, 0, -1, 5, 6, 20))
    first, second = read_steps(recorder.reader)
    assert (first.end_ns, first.phases["forward"], first.duration_ns) == (1000, 2, 100)
    assert second.flags == 2
    assert second.phases == {"input_wait": None, "h2d": 0, "forward": None, "backward": 5, "optimizer": 6}


def test_a_full_ring_keeps_the_newest() -> None:
    recorder = Recorder(new_ring(step_capacity=8))
    for number in range(1, 21):
        recorder.record_step(step(number))
    assert recorder.reader.head(STEP_STREAM) == 20
    assert [s.end_ns for s in read_steps(recorder.reader)] == [1000 * number for number in range(14, 21)]


def test_the_last_step_can_be_amended_and_nothing_else() -> None:
    recorder = Recorder(new_ring())
    recorder.record_step(step(1))
    recorder.record_step(step(2))
    recorder.amend_step(step(5))
    assert [s.end_ns for s in read_steps(recorder.reader)] == [1000, 5000]
    assert recorder.last_step() == step(5)


def test_max_steps_ends_recording_and_keeps_what_was_recorded() -> None:
    recorder = Recorder(new_ring(), max_steps=2)
    for number in range(1, 5):
        recorder.record_step(step(number))
    recorder.amend_step(step(9))
    assert [s.end_ns for s in read_steps(recorder.reader)] == [1000, 2000]
    assert recorder.last_step() is None


def test_max_steps_zero_records_nothing() -> None:
    recorder = Recorder(new_ring(), max_steps=0)
    recorder.record_step(step(1))
    assert recorder.reader.head(STEP_STREAM) == 0


def test_a_recorder_goes_on_where_its_ring_stands() -> None:
    memory = new_ring()
    Recorder(memory).record_step(step(1))
    Recorder(memory).record_step(step(2))
    assert [s.end_ns for s in read_steps(ring.RingReader(memory))] == [1000, 2000]


def test_nothing_is_written_once_it_is_off() -> None:
    memory = new_ring()
    recorder = Recorder(memory)
    recorder.record_step(step(1))
    recorder.is_enabled = False
    before = bytes(memory)
    recorder.record_step(step(2))
    recorder.amend_step(step(2))
    recorder.record_sample(PROCESS_SAMPLE, 1, (1, 2, 3, 4, 5, 6))
    recorder.set_stored(STEP_STREAM, 1)
    recorder.add_dropped(STEP_STREAM, 1)
    recorder.set_identity(1, 2, 3)
    recorder.set_exit_code(3)
    recorder.set_marker(1)
    recorder.set_progress(6, 1, 1)
    recorder.add_note("a note")
    assert not recorder.write_text(ring.MAIN_ERROR, b"{}")
    assert bytes(memory) == before


def test_samples_have_six_values() -> None:
    recorder = Recorder(new_ring())
    recorder.record_sample(PROCESS_SAMPLE, 9, (1, 2, 3, 4, 5, -1))
    assert recorder.reader.head(SAMPLE_STREAM) == 1
    with pytest.raises(ValueError, match="6 values"):
        recorder.record_sample(PROCESS_SAMPLE, 9, (1, 2))


def test_stored_never_goes_back_and_drops_add_up() -> None:
    recorder = Recorder(new_ring())
    for number in range(5):
        recorder.record_step(step(number))
    recorder.set_stored(STEP_STREAM, 4)
    recorder.set_stored(STEP_STREAM, 2)
    recorder.add_dropped(STEP_STREAM, 2)
    recorder.add_dropped(STEP_STREAM, 1)
    assert recorder.reader.num_stored(STEP_STREAM) == 4
    assert recorder.reader.num_dropped(STEP_STREAM) == 3


def test_words_of_the_end() -> None:
    recorder = Recorder(new_ring())
    assert recorder.reader.exit_code() is None
    recorder.set_exit_code(0)
    recorder.set_marker(1)
    assert recorder.reader.exit_code() == 0
    assert recorder.reader.is_marker_sent()


def test_the_phase_changes_within_the_progress_word() -> None:
    recorder = Recorder(new_ring())
    recorder.set_progress(6, 70_000, 123)
    recorder.phase_view()[0] = 4
    assert recorder.reader.progress() == (70_000, "backward", 123)


def test_texts_that_do_not_fit_are_refused_whole() -> None:
    recorder = Recorder(new_ring())
    assert recorder.write_text(ring.NOTES, b'["short"]')
    assert not recorder.write_text(ring.NOTES, b"x" * 4096)
    assert recorder.reader.notes() == ("short",)


def test_notes_stand_once_and_can_be_taken_back() -> None:
    recorder = Recorder(new_ring())
    for sentence in ("one", "two", "one"):
        recorder.add_note(sentence)
    assert recorder.reader.notes() == ("one", "two")
    recorder.drop_note("one")
    recorder.drop_note("never said")
    assert recorder.reader.notes() == ("two",)


def test_notes_that_do_not_fit_any_more_leave_the_others() -> None:
    recorder = Recorder(new_ring())
    recorder.add_note("kept")
    recorder.add_note("x" * 4000)
    assert recorder.reader.notes() == ("kept",)


def test_a_mapping_that_is_no_ring_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        Recorder(memoryview(bytearray(1 << 20)))


def _write_for_ever(path: str, started: multiprocessing.synchronize.Event) -> None:
    with Path(path).open("r+b") as file:
        recorder = Recorder(memoryview(mmap.mmap(file.fileno(), 0)))
    number = 0
    while True:
        number += 1
        recorder.record_step(step(number))
        if number == 2000:
            started.set()


def test_a_killed_writer_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    path.write_bytes(bytes(new_ring(step_capacity=256)))
    context = multiprocessing.get_context("fork")
    started = context.Event()
    writer = context.Process(target=_write_for_ever, args=(str(path), started))
    writer.start()
    assert started.wait(30)
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    writer.close()
    reader = ring.RingReader(path.read_bytes())
    steps = read_steps(reader)
    assert len(steps) == 255
    last = reader.head(STEP_STREAM)
    for number, one in enumerate(steps, last - 254):
        assert (one.end_ns, one.duration_ns, one.phases["optimizer"]) == (1000 * number, 100 * number, 4 * number)
