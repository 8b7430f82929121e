"""A rank's flight recorder as its launcher holds it: anonymous memory, allocated at once, readable after the death."""

from __future__ import annotations

import mmap
import os

from traceml_client.protocol import ring
from traceml_client.protocol.errors import RemoteProtocolError


class RingMemory:
    """Owns the memfd and its mapping."""

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

    def content(self) -> memoryview:
        """All of it, header and slots, as it is now."""
        return memoryview(self._memory)

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the last reader. Legal twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
