"""One connection that speaks the real protocol with the real codec, for the simulated peers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import ssl
import struct
import termios
from array import array

from traceml_client.protocol import codec, columns
from traceml_client.protocol.frames import FrameReader
from traceml_client.protocol.messages import Challenge, FromDaemon, Message, Refused

ANSWER_WITHIN_S = 10.0

_open: set[Wire] = set()


def hang_up_all() -> None:
    """Close what a failing test left open, so that its own failure is what is reported."""
    for wire in tuple(_open):
        wire.reset()


class Wire:
    """A socket to the daemon. Answers are read as they are asked for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._answers: list[FromDaemon] = []
        self.nonce = b""
        _open.add(self)

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> Wire:
        """Connect; nothing has been said yet."""
        return cls(*await asyncio.open_connection(host, port, ssl=tls))

    @classmethod
    async def connect(cls, port: int, host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> Wire:
        """Connect and take the challenge. Raises ConnectionError if there is none."""
        wire = await cls.open(port, host, tls=tls)
        try:
            challenge = await wire.receive()
        except BaseException:
            wire.reset()
            raise
        if isinstance(challenge, Refused):
            await wire.close()
            raise ConnectionRefusedError(challenge.reason)
        assert isinstance(challenge, Challenge)
        wire.nonce = challenge.nonce
        return wire

    async def send(self, message: Message) -> None:
        await self.send_bytes(codec.encode(message))

    async def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    @property
    def num_unsent_bytes(self) -> int:
        """What the kernel has not taken, or the peer's kernel has not acknowledged: a reset would lose it."""
        connected = self._writer.get_extra_info("socket")
        waiting = array("i", [0])
        fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, waiting)
        return self._writer.transport.get_write_buffer_size() + waiting[0]

    async def receive(self, *, within_s: float = ANSWER_WITHIN_S) -> FromDaemon:
        """The next message. Raises ConnectionError at the end of the stream, TimeoutError after `within_s`."""
        async with asyncio.timeout(within_s):
            while not self._answers:
                data = await self._reader.read(65536)
                if not data:
                    raise ConnectionResetError("the daemon closed the connection")
                self._answers += map(codec.decode_from_daemon, self._frames.feed(data))
        return self._answers.pop(0)

    async def is_closed_by_daemon(self, *, within_s: float = ANSWER_WITHIN_S) -> bool:
        """Read on until the daemon closes; false if it does not."""
        try:
            while True:
                await self.receive(within_s=within_s)
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    async def hang_up(self) -> None:
        """Close a connection that the other side may have lost already."""
        with contextlib.suppress(ConnectionError):
            await self.close()

    async def close(self) -> None:
        """FIN, after everything that was sent."""
        _open.discard(self)
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return

    def reset(self) -> None:
        """RST, as the kernel sends for a process that was killed with unread data."""
        _open.discard(self)
        connected = self._writer.get_extra_info("socket")
        if connected is not None and connected.fileno() >= 0:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def step_columns(first_seq: int, count: int, *, tag: int = 0) -> tuple[str, bytes]:
    """Packed steps whose durations tell their number: step n has `step` = 1,000,000 + n nanoseconds."""
    words = array("q")
    for seq in range(first_seq, first_seq + count):
        words.extend(
            (tag, 1_000_000_000 + seq * 2_000_000, 1000, columns.NOT_MEASURED, 3000, 4000, 500, 1_000_001 + seq)
        )
    return columns.pack(memoryview(words))
