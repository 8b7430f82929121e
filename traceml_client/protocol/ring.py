"""The flight recorder's layout, and a reader of it that trusts nothing.

One shared mapping per rank: a header page area, a ring of step records written on the training thread, a ring of sample
records written by the sender thread. A record is complete once the head word counts it: the head is written last, so a
SIGKILL at any instant leaves whole records. In a full ring the slot `head % capacity` may be half overwritten and is
not read. The launcher (or, for direct launches, a file) holds the mapping and reads it after the rank's death.
"""

from __future__ import annotations

import msgspec

from traceml_client.protocol.columns import NUM_STREAMS, RECORD_BYTES, STEP_STREAM
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.node import RankError

MAGIC = 0x31_4C_4D_4C_43_52_54  # "TRCLML1"
LAYOUT_VERSION = 1
STEP_CAPACITY = 65_536
"""13 s at 5,000 steps/s without a daemon; 4 MiB."""
SAMPLE_CAPACITY = 2_048

HEADER_BYTES = 16 * 1024

# Header words (signed 64 bit, index into the mapping).
MAGIC_WORD = 0
VERSION_WORD = 1
CAPACITY_WORD = (2, 3)
HEAD_WORD = (4, 5)
"""Records ever committed per stream; the commit word."""
STORED_WORD = (6, 7)
"""Everything before this sequence is acknowledged by the daemon."""
DROPPED_WORD = (8, 9)
"""Records that were overwritten before they could be sent."""
WALL_MINUS_MONOTONIC_WORD = 10
PROGRESS_WORD = 11
"""phase index << 48 | step in progress (from 1). The step may be behind: the head tells the same, see `progress`."""
PROGRESS_AT_WORD = 12
"""Monotonic time when that step began."""
EXIT_CODE_WORD = 13
EXIT_KNOWN_WORD = 14
"""1 once the rank has written its own exit code (SystemExit, uncaught exception, normal end)."""
MARKER_WORD = 15
"""0 no marker, 1 the runtime reached its orderly end, 2 the daemon has acknowledged it."""
PID_WORD = 16
START_TICKS_WORD = 17
TEXT_LENGTH_WORD = (18, 19, 20)
"""Bytes used of each text area below; written after the text."""

MAIN_ERROR, THREAD_ERROR, NOTES = 0, 1, 2
TEXT_AREA = ((1024, 8192), (8192, 14_336), (14_336, HEADER_BYTES))
"""Start and end of: main error, first thread error (RankError as JSON), notes (list of sentences as JSON)."""

RUNNING_PHASES = (None, "input_wait", "h2d", "forward", "backward", "optimizer", "residual")
"""What PROGRESS_WORD's phase index means; 0 before the first step."""

_STEP_MASK = (1 << 48) - 1


def ring_bytes(step_capacity: int = STEP_CAPACITY, sample_capacity: int = SAMPLE_CAPACITY) -> int:
    return HEADER_BYTES + RECORD_BYTES * (step_capacity + sample_capacity)


def stream_offset(stream: int, step_capacity: int) -> int:
    """First byte of a stream's slots."""
    return HEADER_BYTES + (RECORD_BYTES * step_capacity if stream else 0)


def initialize(buffer: memoryview, step_capacity: int = STEP_CAPACITY, sample_capacity: int = SAMPLE_CAPACITY) -> None:
    """Write an empty ring's header into a zeroed mapping. Raises ValueError if the mapping is too small."""
    if buffer.nbytes < ring_bytes(step_capacity, sample_capacity):
        raise ValueError("the mapping is smaller than the ring")
    words = buffer.cast("B").cast("q")
    words[VERSION_WORD] = LAYOUT_VERSION
    words[CAPACITY_WORD[0]], words[CAPACITY_WORD[1]] = step_capacity, sample_capacity
    words[MAGIC_WORD] = MAGIC


class RingReader:
    """Reads a ring that another process writes, or wrote before it died. Every number is checked before use.

    Raises:
        RemoteProtocolError: the mapping is not a ring of this version, or its numbers cannot be.
    """

    def __init__(self, buffer: memoryview | bytes | bytearray) -> None:
        self._bytes = memoryview(buffer).cast("B")
        if self._bytes.nbytes < HEADER_BYTES:
            raise RemoteProtocolError("too short for a recorder")
        self._words = self._bytes[:HEADER_BYTES].cast("q")
        if self._words[MAGIC_WORD] != MAGIC or self._words[VERSION_WORD] != LAYOUT_VERSION:
            raise RemoteProtocolError("not a recorder of this version")
        self.capacities = (self._words[CAPACITY_WORD[0]], self._words[CAPACITY_WORD[1]])
        if min(self.capacities) < 2 or ring_bytes(*self.capacities) > self._bytes.nbytes:
            raise RemoteProtocolError("the recorder's capacities do not fit its size")

    def head(self, stream: int) -> int:
        return max(0, self._words[HEAD_WORD[stream]])

    def num_stored(self, stream: int) -> int:
        return min(max(0, self._words[STORED_WORD[stream]]), self.head(stream))

    def num_dropped(self, stream: int) -> int:
        return max(0, self._words[DROPPED_WORD[stream]])

    def word(self, index: int) -> int:
        return self._words[index]

    def first_readable(self, stream: int) -> int:
        """The oldest sequence that is surely whole: all of them until the ring is full, then one less than its size."""
        return max(0, self.head(stream) - self.capacities[stream] + 1)

    def read(self, stream: int, first_seq: int, max_records: int) -> tuple[int, bytes]:
        """Copy up to `max_records` raw records from `first_seq` on: (sequence of the first one, 64 bytes each).

        Starts later than asked where the ring has been overwritten. The caller of a *living* ring must check
        `first_readable` again after the copy and discard what it overtook.
        """
        head, capacity = self.head(stream), self.capacities[stream]
        first = max(first_seq, self.first_readable(stream))
        count = max(0, min(max_records, head - first))
        base = stream_offset(stream, self.capacities[0])
        slot = first % capacity
        run = min(count, capacity - slot)
        parts = [self._bytes[base + RECORD_BYTES * slot : base + RECORD_BYTES * (slot + run)]]
        if run < count:
            parts.append(self._bytes[base : base + RECORD_BYTES * (count - run)])
        return first, b"".join(parts)

    def progress(self) -> tuple[int, str | None, int]:
        """(step in progress from 1, phase name or null, monotonic time when that step began); 0 before the first.

        A completed step is announced by the head alone, so that its record and the progress cannot disagree.
        """
        word = self._words[PROGRESS_WORD]
        index = word >> 48
        phase = RUNNING_PHASES[index] if 0 <= index < len(RUNNING_PHASES) else None
        step, began_ns = word & _STEP_MASK, self._words[PROGRESS_AT_WORD]
        head = self.head(STEP_STREAM)
        if head >= step > 0:
            slot = stream_offset(STEP_STREAM, self.capacities[0]) + RECORD_BYTES * ((head - 1) % self.capacities[0])
            step, began_ns = head + 1, self._bytes[slot + 8 : slot + 16].cast("q")[0]
        return step, phase, began_ns

    def exit_code(self) -> int | None:
        return self._words[EXIT_CODE_WORD] if self._words[EXIT_KNOWN_WORD] == 1 else None

    def is_marker_sent(self) -> bool:
        return self._words[MARKER_WORD] >= 1

    def error(self, area: int) -> RankError | None:
        """The error recorded in MAIN_ERROR or THREAD_ERROR; null if none, or if it was cut short by the death."""
        try:
            return msgspec.json.decode(self._text(area), type=RankError)
        except msgspec.DecodeError:
            return None

    def notes(self) -> tuple[str, ...]:
        try:
            return msgspec.json.decode(self._text(NOTES), type=tuple[str, ...])
        except msgspec.DecodeError:
            return ()

    def _text(self, area: int) -> bytes:
        start, end = TEXT_AREA[area]
        length = self._words[TEXT_LENGTH_WORD[area]]
        return bytes(self._bytes[start : start + length]) if 0 < length <= end - start else b""


assert len(HEAD_WORD) == NUM_STREAMS
