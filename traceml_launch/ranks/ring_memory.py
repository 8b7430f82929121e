"""A rank's flight recorder as its launcher holds it, and what it says of its rank beside the records."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

from traceml_client.protocol import columns, ring
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.node import RankError

MARKER_STORED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """Small enough to be kept for every attempt. Of a recorder that cannot be read nothing is known."""

    exit_code: int | None = None
    """As the rank itself recorded it; null where it was ended from outside."""
    is_marker_sent: bool = False
    is_marker_stored: bool = False
    """The daemon has told the rank so."""
    error: RankError | None = None
    thread_error: RankError | None = None
    step: int = 0
    phase: str | None = None
    notes: tuple[str, ...] = ()
    num_steps_recorded: int = 0
    num_steps_dropped: int = 0


class RingMemory:
    """Anonymous memory, allocated at once, readable after the death: owns the memfd and its mapping."""

    def __init__(self) -> None:
        """Allocate and initialise it. Raises OSError where memory is short."""
        size = ring.ring_bytes()
        self.fd = os.memfd_create("traceml-ring", os.MFD_CLOEXEC)
        try:
            # All of it now: a page that cannot be had later would end the rank by SIGBUS.
            os.posix_fallocate(self.fd, 0, size)
            self._memory = mmap.mmap(self.fd, size)
        except OSError:
            os.close(self.fd)
            raise
        ring.initialize(memoryview(self._memory))

    def reader(self) -> ring.RingReader | None:
        """Null where the rank has destroyed the header."""
        try:
            return ring.RingReader(memoryview(self._memory))
        except RemoteProtocolError:
            return None

    def record(self) -> RankRecord:
        """As it is now."""
        reader = self.reader()
        if reader is None:
            return RankRecord()
        step, phase, _ = reader.progress()
        return RankRecord(
            exit_code=reader.exit_code(),
            is_marker_sent=reader.is_marker_sent(),
            is_marker_stored=reader.word(ring.MARKER_WORD) >= MARKER_STORED,
            error=reader.error(ring.MAIN_ERROR),
            thread_error=reader.error(ring.THREAD_ERROR),
            step=step,
            phase=phase,
            notes=reader.notes(),
            num_steps_recorded=reader.head(columns.STEP_STREAM),
            num_steps_dropped=reader.num_dropped(columns.STEP_STREAM),
        )

    def content(self) -> memoryview:
        """All of it, header and slots, as it is now."""
        return memoryview(self._memory)

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the last reader. Legal twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
