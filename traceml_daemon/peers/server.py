"""The listening socket: lets peers in after a handshake, and bounds what strangers can hold.

A stranger has five seconds and four kilobytes for its hello. When too many strangers wait, the one that has waited
longest is cut off: a member of a run needs one round trip, so that is never it.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from traceml_client.protocol import messages
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.messages import Challenge, NodeHello, RankHello, Refused, ToDaemon
from traceml_client.protocol.proof import new_nonce
from traceml_daemon.clock import Clock, Timer
from traceml_daemon.errors import CannotStart, NotAdmitted
from traceml_daemon.peers.arrivals import Allowance, Arrivals
from traceml_daemon.peers.connection import Connection, Peer
from traceml_daemon.peers.half_frames import HalfFrames
from traceml_daemon.peers.rejections import Rejections

if TYPE_CHECKING:
    import ssl

    from traceml_client.protocol.tls import TlsStream

HANDSHAKE_TIMEOUT_S: Final = 5.0
MAX_STRANGERS: Final = 2048
"""A job of 1,024 ranks that connects in one instant, twice over."""
MAX_CONNECTIONS: Final = 16_384
MAX_PER_ADDRESS: Final = 8192
"""All ranks of a simulated job may come from one host."""
FRAMES_PER_S: Final = 10_000
"""Of one peer for long: 2.5 million steps a second as ranks pack them. Faster ones are read more slowly."""
FRAMES_AT_ONCE: Final = 40_000
RECEIVE_BUFFER_BYTES: Final = 256 << 10
_BACKLOG: Final = 2048
_LAST_WORDS_S: Final = 1.0
"""How long a peer may take to read the last answer."""


class Door(Protocol):
    """Who decides about hellos."""

    async def admit(self, hello: RankHello | NodeHello, nonce: bytes, connection: Connection) -> Peer:
        """Let it in and answer it. Raises NotAdmitted."""
        ...


class Server:
    """Listens on one address. Knows connections, nothing of runs."""

    def __init__(
        self,
        door: Door,
        clock: Clock,
        rejections: Rejections,
        *,
        max_connections: int = MAX_CONNECTIONS,
        max_strangers: int = MAX_STRANGERS,
        arrivals: Arrivals | None = None,
        frames_at_once: int = FRAMES_AT_ONCE,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.rejections = rejections
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.half_frames = HalfFrames(clock)
        self.now_s = clock.now_s
        self.tls = tls
        self.port = 0
        self._door = door
        self._clock = clock
        self._arrivals = arrivals or Arrivals()
        self._frames_at_once = frames_at_once
        self._max_connections = max_connections
        self._max_strangers = min(max_strangers, max(1, max_connections // 2))
        self._connections: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._strangers: dict[Connection, Timer] = {}
        """In the order in which they came."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._emptied: asyncio.Future[None] | None = None
        """While closing: done when the last connection is gone."""

    async def listen(self, host: str, port: int, *, is_port_required: bool = True) -> int:
        """Bind and listen; return the port.

        Raises:
            CannotStart: the address is not to be had.
        """
        try:
            return await self._bind(host, port)
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            if not is_taken or is_port_required or port == 0:
                text = f"cannot listen on {host}:{port}: {error.strerror or error}"
                raise CannotStart(text, is_port_taken=is_taken) from None
        return await self.listen(host, 0)

    async def _bind(self, host: str, port: int) -> int:
        """A socket made here: the loop would start four threads to look up an address that is a number already."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        is_any = host == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_any)
        self.port = int(listening.getsockname()[1])
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(functools.partial(Connection, self), sock=listening, backlog=_BACKLOG)
        return self.port

    def stop_listening(self) -> None:
        """Connections that are there stay. Legal without `listen`, and twice."""
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        """Stop listening; send what was written, then cut everybody off. Legal twice."""
        self.stop_listening()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in tuple(self._connections):
            connection.close()
        if self._connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=_LAST_WORDS_S)
        for connection in tuple(self._connections):
            connection.abort()
        self.half_frames.close()
        if self._listener is not None:
            await self._listener.wait_closed()
            self._listener = None

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    # --- called by connections ------------------------------------------------------------------------------------

    def greet(self, connection: Connection) -> None:
        """A socket was accepted: challenge it, or turn it away."""
        self._connections.add(connection)
        self._per_address[connection.address] += 1
        if not self._arrivals.may_come(connection.address, now_s=self._clock.now_s()):
            connection.reject(messages.TOO_MANY, "it comes too often")
            return
        is_full = len(self._connections) > self._max_connections
        if len(self._strangers) >= self._max_strangers or (is_full and self._strangers):
            oldest = next(iter(self._strangers))
            self._part_with(oldest)
            oldest.reject(messages.TOO_MANY, "too many strangers")
        elif is_full or self._per_address[connection.address] > MAX_PER_ADDRESS:
            self.turn_away(connection, messages.TOO_MANY, "the aggregator has too many connections")
            return
        nonce = new_nonce()
        connection.peer = _Stranger(self, connection, nonce)
        deadline_s = self._clock.now_s() + HANDSHAKE_TIMEOUT_S
        self._strangers[connection] = self._clock.call_at(deadline_s, functools.partial(self._expire, connection))
        connection.send(Challenge(messages.PROTOCOL_MAJOR, nonce))

    def frame_allowance(self) -> Allowance:
        """For one connection."""
        return Allowance(per_s=FRAMES_PER_S, burst=self._frames_at_once, now_s=self._clock.now_s())

    def new_tls(self) -> TlsStream | None:
        """The encryption of a new connection."""
        if self.tls is None:
            return None
        from traceml_client.protocol.tls import TlsStream  # the library is loaded only where it is used

        return TlsStream(self.tls, is_server=True)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]
        self._part_with(connection)
        if not self._connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def turn_away(self, connection: Connection, reason: str, detail: str) -> None:
        """Refuse a peer: say why, count it, close."""
        self.rejections.count(connection.address, reason, detail)
        connection.send(Refused(reason, detail))
        connection.close()

    def take_hello(self, connection: Connection, hello: RankHello | NodeHello, nonce: bytes) -> None:
        self._part_with(connection)
        task = asyncio.get_running_loop().create_task(self._admit(connection, hello, nonce))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, connection: Connection, hello: RankHello | NodeHello, nonce: bytes) -> None:
        try:
            if hello.version != messages.PROTOCOL_MAJOR:
                detail = f"the aggregator speaks version {messages.PROTOCOL_MAJOR}, the peer {hello.version}"
                raise NotAdmitted(messages.WRONG_VERSION, detail)
            peer = await self._door.admit(hello, nonce, connection)
        except NotAdmitted as refusal:
            self.turn_away(connection, refusal.reason, refusal.detail)
            return
        self._arrivals.welcome(connection.address)
        if connection.is_closed:
            peer.lost()

    def _expire(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        if connection.says_that_tls_is_required():
            self.rejections.count(connection.address, messages.TLS_REQUIRED)
        else:
            connection.reject("handshake_timeout", "no hello")

    def _part_with(self, stranger: Connection) -> None:
        timer = self._strangers.pop(stranger, None)
        if timer is not None:
            timer.cancel()


class _Stranger:
    """A peer that has not said who it is."""

    def __init__(self, server: Server, connection: Connection, nonce: bytes) -> None:
        self._server = server
        self._connection = connection
        self._nonce = nonce
        self._is_asking = False

    def receive(self, message: ToDaemon) -> None:
        if self._is_asking or not isinstance(message, RankHello | NodeHello):
            raise RemoteProtocolError(f"{type(message).__name__} before it was let in")
        self._is_asking = True
        self._server.take_hello(self._connection, message, self._nonce)

    def lost(self) -> None:
        """Nobody knew it."""
