"""A wire to the daemon that can be cut and restored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Relay:
    """Passes bytes on in both directions while it is whole."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_whole = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_connections = 0

    def cut(self) -> None:
        """Reset every connection; new ones are closed at once."""
        self._is_whole = False
        for writer in self._writers:
            writer.transport.abort()

    def restore(self) -> None:
        self._is_whole = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_whole:
            writer.transport.abort()
            return
        self.num_connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, far_writer}
        copies = [self._copy(reader, far_writer), self._copy(far_reader, writer)]
        await asyncio.gather(*copies)
        self._writers -= {writer, far_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[tuple[Relay, int]]:
    """(the relay, its own port)."""
    relay = Relay(port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    try:
        yield relay, server.sockets[0].getsockname()[1]
    finally:
        relay.cut()
        server.close()
        await server.wait_closed()
