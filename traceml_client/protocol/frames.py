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

    Holds at most one incomplete frame, so at most `max_frame_bytes` + 4 bytes.
    """

    __slots__ = ("_max_frame_bytes", "_pending")

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pending = b""

    @property
    def num_pending_bytes(self) -> int:
        """Bytes of a frame that has begun and not ended; 0 between frames."""
        return len(self._pending)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
        """Yield the payloads that `data` completes. Views are valid until the next call.

        Raises:
            FrameTooLarge: a length over the limit was announced; the connection is of no further use.
        """
        buffer = memoryview(self._pending + bytes(data)) if self._pending else memoryview(data)
        total = len(buffer)
        offset = 0
        self._pending = b""
        while total - offset >= HEADER_BYTES:
            (length,) = _LENGTH.unpack_from(buffer, offset)
            if length > self._max_frame_bytes:
                raise FrameTooLarge(f"a frame of {length} bytes is over the limit of {self._max_frame_bytes}")
            end = offset + HEADER_BYTES + length
            if end > total:
                break
            yield buffer[offset + HEADER_BYTES : end]
            offset = end
        if offset < total:
            self._pending = bytes(buffer[offset:])
