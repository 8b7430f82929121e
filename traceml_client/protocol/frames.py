"""Length-prefixed framing without I/O: bytes in, whole payloads out.

A frame is a little-endian u32 length and that many bytes. The length is checked against the limit *before* anything
is buffered, so a peer that announces 4 GiB costs four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from traceml_client.protocol.errors import FrameTooLarge, LocalProtocolError

MAX_FRAME_BYTES = 1 << 20
"""Room for 250 steps (9 KB), for a 64 KiB log tail per message, and for a long traceback; far below what could hurt."""

_LENGTH = struct.Struct("<I")
_length_at = _LENGTH.unpack_from
HEADER_BYTES = _LENGTH.size


def frame(payload: bytes, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return `payload` with its length in front.

    Raises:
        LocalProtocolError: the payload is larger than the peer would accept.
    """
    if len(payload) > max_frame_bytes:
        raise LocalProtocolError(f"a frame of {len(payload)} bytes is over the limit of {max_frame_bytes}")
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Collects bytes in any chunking and yields each payload once, in order.

    Holds at most one incomplete frame, so at most `max_frame_bytes` + 4 bytes; each byte of it is copied once or twice,
    however small the pieces are that it comes in. Whole frames are not copied at all.
    """

    __slots__ = ("_pending", "max_frame_bytes")

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        """May be raised between two calls of `feed`: a stranger is allowed less than a member of the run."""
        self._pending = bytearray()

    @property
    def num_pending_bytes(self) -> int:
        """Bytes of a frame that has begun and not ended; 0 between frames."""
        return len(self._pending)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
        """Yield the payloads that `data` completes. Views are valid until the next call.

        Raises:
            FrameTooLarge: a length over the limit was announced; the connection is of no further use.
        """
        buffer = memoryview(data)
        offset = 0
        if self._pending:
            offset = self._top_up(buffer)
            if not self._is_whole():
                return
            whole, self._pending = self._pending, bytearray()
            yield memoryview(whole)[HEADER_BYTES:]
        total = len(buffer)
        limit = self.max_frame_bytes
        while total - offset >= HEADER_BYTES:
            (length,) = _length_at(buffer, offset)
            if length > limit:
                raise _too_large(length, limit)
            end = offset + HEADER_BYTES + length
            if end > total:
                break
            yield buffer[offset + HEADER_BYTES : end]
            offset = end
        if offset < total:
            self._pending += buffer[offset:]

    def _top_up(self, buffer: memoryview) -> int:
        """Move into the frame that has begun what belongs to it; return how many bytes that was."""
        pending = self._pending
        used = 0
        if len(pending) < HEADER_BYTES:
            used = HEADER_BYTES - len(pending)
            pending += buffer[:used]
            if len(pending) < HEADER_BYTES:
                return len(buffer)
        length: int = _length_at(pending)[0]
        if length > self.max_frame_bytes:
            raise _too_large(length, self.max_frame_bytes)
        missing = HEADER_BYTES + length - len(pending)
        pending += buffer[used : used + missing]
        return min(len(buffer), used + missing)

    def _is_whole(self) -> bool:
        pending = self._pending
        return len(pending) >= HEADER_BYTES and len(pending) == HEADER_BYTES + int(_length_at(pending)[0])


def _too_large(length: int, limit: int) -> FrameTooLarge:
    return FrameTooLarge(f"a frame of {length} bytes is over the limit of {limit}")
