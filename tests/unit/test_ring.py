"""The flight recorder as its reader sees it, whole, full, torn or not a recorder at all."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from traceml_client.protocol import ring
from traceml_client.protocol.columns import RECORD_BYTES, RECORD_WORDS, SAMPLE_STREAM, STEP_STREAM
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.node import RankError
from traceml_client.protocol.ring import RingReader

STEPS, SAMPLES = 8, 4


class Recorder:
    """Writes as a rank does, record by record, the commit word last."""

    def __init__(self) -> None:
        self.memory = bytearray(ring.ring_bytes(STEPS, SAMPLES))
        ring.initialize(memoryview(self.memory), STEPS, SAMPLES)
        self.words = memoryview(self.memory).cast("q")

    def record(self, stream: int, value: int) -> None:
        self.begin(stream, value)
        self.words[ring.HEAD_WORD[stream]] += 1

    def begin(self, stream: int, value: int) -> None:
        """Everything but the commit."""
        slot = self.words[ring.HEAD_WORD[stream]] % (STEPS, SAMPLES)[stream]
        start = (ring.stream_offset(stream, STEPS) + RECORD_BYTES * slot) // 8
        for word in range(RECORD_WORDS):
            self.words[start + word] = value

    def write_text(self, area: int, text: bytes) -> None:
        start, _ = ring.TEXT_AREA[area]
        self.memory[start : start + len(text)] = text
        self.words[ring.TEXT_LENGTH_WORD[area]] = len(text)

    def reader(self) -> RingReader:
        return RingReader(self.memory)


def values(raw: bytes) -> list[int]:
    words = array("q")
    words.frombytes(raw)
    rows = [set(words[start : start + RECORD_WORDS]) for start in range(0, len(words), RECORD_WORDS)]
    assert all(len(row) == 1 for row in rows), "a torn record"
    return [row.pop() for row in rows]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_an_empty_ring_has_nothing_to_read(recorder: Recorder) -> None:
    reader = recorder.reader()

    assert (reader.head(STEP_STREAM), reader.read(STEP_STREAM, 0, 100)) == (0, (0, b""))
    assert reader.exit_code() is None
    assert not reader.is_marker_sent()
    assert (reader.error(ring.MAIN_ERROR), reader.notes(), reader.progress()) == (None, (), (0, None, 0))


def test_records_come_back_in_order_and_streams_apart(recorder: Recorder) -> None:
    for value in range(5):
        recorder.record(STEP_STREAM, 100 + value)
    recorder.record(SAMPLE_STREAM, 7)
    reader = recorder.reader()

    first, raw = reader.read(STEP_STREAM, 2, 2)
    assert (first, values(raw)) == (2, [102, 103])
    first, raw = reader.read(SAMPLE_STREAM, 0, 100)
    assert (first, values(raw)) == (0, [7])


def test_a_record_without_its_commit_is_not_read(recorder: Recorder) -> None:
    recorder.record(STEP_STREAM, 1)
    recorder.begin(STEP_STREAM, 2)

    assert values(recorder.reader().read(STEP_STREAM, 0, 100)[1]) == [1]


@pytest.mark.parametrize("num_records", range(3 * STEPS))
def test_a_full_ring_keeps_all_but_the_slot_that_may_be_half_written(recorder: Recorder, num_records: int) -> None:
    for value in range(num_records):
        recorder.record(STEP_STREAM, value)
    recorder.begin(STEP_STREAM, -1)

    first, raw = recorder.reader().read(STEP_STREAM, 0, 100)

    assert first == max(0, num_records - STEPS + 1)
    assert values(raw) == list(range(first, num_records))


def test_what_was_overwritten_is_skipped_and_the_start_says_so(recorder: Recorder) -> None:
    for value in range(20):
        recorder.record(STEP_STREAM, value)

    first, raw = recorder.reader().read(STEP_STREAM, 5, 3)

    assert (first, values(raw)) == (13, [13, 14, 15])


def test_words_beside_the_records(recorder: Recorder) -> None:
    words = recorder.words
    words[ring.EXIT_CODE_WORD], words[ring.EXIT_KNOWN_WORD] = 3, 1
    words[ring.MARKER_WORD] = 1
    words[ring.PROGRESS_WORD] = ring.RUNNING_PHASES.index("backward") << 48 | 50
    words[ring.PROGRESS_AT_WORD] = 12345
    words[ring.DROPPED_WORD[STEP_STREAM]] = 9
    error = RankError("main", "ValueError", "no", "Traceback ...", 1, 50, "backward")
    recorder.write_text(ring.MAIN_ERROR, msgspec.json.encode(error))
    recorder.write_text(ring.NOTES, msgspec.json.encode(["forward is null"]))
    reader = recorder.reader()

    assert reader.exit_code() == 3
    assert reader.is_marker_sent()
    assert reader.progress() == (50, "backward", 12345)
    assert reader.num_dropped(STEP_STREAM) == 9
    assert reader.error(ring.MAIN_ERROR) == error
    assert reader.error(ring.THREAD_ERROR) is None
    assert reader.notes() == ("forward is null",)


def test_a_text_that_death_cut_short_is_none(recorder: Recorder) -> None:
    recorder.write_text(ring.MAIN_ERROR, b'{"kind": "main", "type": "Val')
    recorder.write_text(ring.NOTES, b'["half')

    assert recorder.reader().error(ring.MAIN_ERROR) is None
    assert recorder.reader().notes() == ()


@pytest.mark.parametrize("length", [-1, 1 << 40])
def test_an_impossible_text_length_is_no_text(recorder: Recorder, length: int) -> None:
    recorder.words[ring.TEXT_LENGTH_WORD[ring.MAIN_ERROR]] = length

    assert recorder.reader().error(ring.MAIN_ERROR) is None


def test_acknowledged_is_never_more_than_recorded(recorder: Recorder) -> None:
    recorder.record(STEP_STREAM, 1)
    recorder.words[ring.STORED_WORD[STEP_STREAM]] = 1000

    assert recorder.reader().num_stored(STEP_STREAM) == 1


@pytest.mark.parametrize(
    "memory",
    [bytes(100), bytes(ring.ring_bytes(STEPS, SAMPLES)), bytes(Recorder().memory[:-1])],
    ids=["too short", "zeros", "cut off"],
)
def test_what_is_no_recorder_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        RingReader(memory)


@pytest.mark.parametrize("capacities", [(1, 4), (8, 0), (-8, 4), (1 << 40, 4), (STEPS + 1, SAMPLES)])
def test_capacities_that_do_not_fit_are_refused(recorder: Recorder, capacities: tuple[int, int]) -> None:
    for word, capacity in zip(ring.CAPACITY_WORD, capacities, strict=True):
        recorder.words[word] = capacity

    with pytest.raises(RemoteProtocolError, match="capacities"):
        recorder.reader()


def test_another_layout_version_is_refused(recorder: Recorder) -> None:
    recorder.words[ring.VERSION_WORD] = ring.LAYOUT_VERSION + 1

    with pytest.raises(RemoteProtocolError, match="not a recorder of this version"):
        recorder.reader()


def test_a_mapping_that_is_too_small_is_not_initialized() -> None:
    with pytest.raises(ValueError, match="smaller"):
        ring.initialize(memoryview(bytearray(100)), STEPS, SAMPLES)
