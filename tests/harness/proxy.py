"""A wire to the daemon that can be cut, stilled, slowed, chopped and restored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """Passes bytes on in both directions, as its attributes say at that moment."""

    def __init__(self, port: int) -> None:
        self.delay_s = 0.0
        """Before each piece is passed on."""
        self.piece_bytes = 65536
        """Largest piece that is passed on at once."""
        self.num_connections = 0
        self._port = port
        self._is_whole = True
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Reset every connection; new ones are reset at once."""
        self._is_whole = False
        self._flows.set()
        for writer in self._writers:
            writer.transport.abort()

    def still(self) -> None:
        """Nothing arrives any more and nobody is told, as when a cable is pulled."""
        self._flows.clear()

    def restore(self) -> None:
        self._is_whole = True
        self._flows.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_whole:
            writer.transport.abort()
            return
        self.num_connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        self._writers -= {writer, far_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(self.piece_bytes):
                await self._flows.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[tuple[Proxy, int]]:
    """(the proxy, its own port)."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        proxy.cut()
        server.close()
        await server.wait_closed()
