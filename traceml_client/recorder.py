"""Writes the flight recorder: fixed-size records into the ring of `protocol.ring`, the commit word last.

Steps are written by the training thread, samples and acknowledgements by the sender's thread, errors by whichever
thread raises; each word has one writer. Nothing here locks, grows, or enters the kernel. A full ring overwrites its
oldest record whether or not it was sent: the sender counts what it overtook (`add_dropped`), training never waits.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from typing import cast

import msgspec

from traceml_client.protocol import ring
from traceml_client.protocol.columns import NUM_VALUES, RECORD_BYTES, SAMPLE_STREAM, STEP_STREAM

StepWords = tuple[int, int, int, int, int, int, int, int]
"""A step in the ring's own form: (flags, end_ns, input_wait, h2d, forward, backward, optimizer, step)."""

RECORD = struct.Struct("8q")
"""One record of any stream: tag, end time, six values."""
pack_record = RECORD.pack_into
_PROGRESS = struct.Struct("2q")
FIRST_SLOT = ring.HEADER_BYTES
STEP_HEAD = ring.HEAD_WORD[STEP_STREAM]
_PROGRESS_BYTE = 8 * ring.PROGRESS_WORD
_PHASE_BYTE = _PROGRESS_BYTE + 6
"""Of the little-endian progress word, the byte that holds the phase."""
MAX_NOTES = 16


class Recorder:
    """The writing side of one ring.

    Args:
        buffer: a writable mapping that `ring.initialize` has prepared; kept for the life of the recorder.
        max_steps: record no step after this many (`--trace-max-steps`); null for all.

    Raises:
        RemoteProtocolError: the mapping is not a ring of this version.
    """

    __slots__ = (
        "_is_beyond",
        "_max_steps",
        "_notes",
        "_num_samples",
        "_sample_base",
        "_sample_capacity",
        "is_enabled",
        "is_limited",
        "memory",
        "reader",
        "step_capacity",
        "words",
    )

    def __init__(self, buffer: memoryview, *, max_steps: int | None = None) -> None:
        self.reader = ring.RingReader(buffer)
        """Reads the same mapping: heads, stored words, records, progress."""
        self.memory = memoryview(buffer).cast("B")
        self.words = self.memory[: ring.HEADER_BYTES].cast("q")
        self.step_capacity, self._sample_capacity = self.reader.capacities
        self._sample_base = ring.stream_offset(SAMPLE_STREAM, self.step_capacity)
        self._num_samples = self.reader.head(SAMPLE_STREAM)
        self._max_steps = sys.maxsize if max_steps is None else max_steps
        self.is_limited = max_steps is not None
        """There is a step after which none is recorded."""
        self._notes: list[str] = []
        self._is_beyond = False
        self.is_enabled = True
        """False in a forked child, and once recording was given up: every write below is then ignored."""

    def record_step(self, words: StepWords) -> None:
        """Append one step. Training thread only."""
        count = self.words[STEP_HEAD]
        if count >= self._max_steps or not self.is_enabled:
            self._is_beyond = True
            return
        pack_record(self.memory, FIRST_SLOT + RECORD_BYTES * (count % self.step_capacity), *words)
        self.words[STEP_HEAD] = count + 1

    def last_step(self) -> StepWords | None:
        """The step recorded last, null if there is none or it fell behind `max_steps`."""
        if self._is_beyond or self.words[STEP_HEAD] == 0:
            return None
        return cast(StepWords, RECORD.unpack_from(self.memory, self._last_step_offset()))

    def amend_step(self, words: StepWords) -> None:
        """Write the step recorded last once more: another optimizer turned out to belong to it."""
        if not self._is_beyond and self.words[STEP_HEAD] and self.is_enabled:
            pack_record(self.memory, self._last_step_offset(), *words)

    def record_sample(self, kind: int, end_ns: int, values: tuple[int, ...]) -> None:
        """Append one sample of six values. Sender's thread only.

        Raises:
            ValueError: not six values.
        """
        if len(values) != NUM_VALUES:
            raise ValueError(f"a sample has {NUM_VALUES} values, not {len(values)}")
        if not self.is_enabled:
            return
        slot = self._num_samples % self._sample_capacity
        pack_record(self.memory, self._sample_base + RECORD_BYTES * slot, kind, end_ns, *values)
        self._num_samples += 1
        self.words[ring.HEAD_WORD[SAMPLE_STREAM]] = self._num_samples

    def phase_view(self) -> memoryview:
        """One byte, the phase in progress: on the step path a call for each change would cost as much again."""
        return self.memory[_PHASE_BYTE : _PHASE_BYTE + 1]

    def set_progress(self, phase: int, step: int, began_ns: int) -> None:
        """A step begins that the records do not tell of: the first, or one after `max_steps`. Training thread only."""
        if self.is_enabled:
            _PROGRESS.pack_into(self.memory, _PROGRESS_BYTE, phase << 48 | step, began_ns)

    def set_stored(self, stream: int, next_seq: int) -> None:
        """The daemon has committed everything before `next_seq`. Sender's thread only; never goes back."""
        if self.is_enabled and next_seq > self.words[ring.STORED_WORD[stream]]:
            self.words[ring.STORED_WORD[stream]] = next_seq

    def add_dropped(self, stream: int, count: int) -> None:
        """Count records that were overwritten before they could be sent. Sender's thread only."""
        if self.is_enabled:
            self.words[ring.DROPPED_WORD[stream]] += count

    def set_identity(self, pid: int, start_ticks: int, wall_minus_monotonic_ns: int) -> None:
        if self.is_enabled:
            self.words[ring.PID_WORD] = pid
            self.words[ring.START_TICKS_WORD] = start_ticks
            self.words[ring.WALL_MINUS_MONOTONIC_WORD] = wall_minus_monotonic_ns

    def set_exit_code(self, exit_code: int) -> None:
        if self.is_enabled:
            self.words[ring.EXIT_CODE_WORD] = exit_code
            self.words[ring.EXIT_KNOWN_WORD] = 1

    def set_marker(self, value: int) -> None:
        """1: the runtime reached its orderly end; 2: the daemon has acknowledged that."""
        if self.is_enabled:
            self.words[ring.MARKER_WORD] = value

    def write_text(self, area: int, data: bytes) -> bool:
        """Replace a text area (`ring.MAIN_ERROR`, `THREAD_ERROR`, `NOTES`); False if it does not fit.

        The length is zero while the text changes, so that a death in between leaves no half of one.
        """
        start, end = ring.TEXT_AREA[area]
        if not self.is_enabled or len(data) > end - start:
            return False
        self.words[ring.TEXT_LENGTH_WORD[area]] = 0
        self.memory[start : start + len(data)] = data
        self.words[ring.TEXT_LENGTH_WORD[area]] = len(data)
        return True

    def add_note(self, sentence: str) -> None:
        """Keep a sentence for the report, once."""
        if sentence not in self._notes and len(self._notes) < MAX_NOTES:
            self._write_notes([*self._notes, sentence])

    def drop_note(self, sentence: str) -> None:
        """It is not true any more."""
        if sentence in self._notes:
            self._write_notes(note for note in self._notes if note != sentence)

    def _write_notes(self, notes: Iterable[str]) -> None:
        kept = list(notes)
        if self.write_text(ring.NOTES, msgspec.json.encode(kept)):
            self._notes = kept

    def _last_step_offset(self) -> int:
        return ring.HEADER_BYTES + RECORD_BYTES * ((self.words[STEP_HEAD] - 1) % self.step_capacity)
