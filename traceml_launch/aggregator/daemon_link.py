"""The launcher's own connection to the daemon: what it knows of processes goes out, acknowledgements come back.

Everything said once is kept and said again after a reconnect, so a cut wire loses nothing; the daemon takes repeats.
A ping each second measures the clocks' offset and tells a living daemon from a stopped one.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from traceml_client.protocol import messages, proof
from traceml_client.protocol.clock_offset import ClockOffset
from traceml_client.protocol.codec import decode_from_daemon, encode
from traceml_client.protocol.errors import ProtocolError, Refused, RemoteProtocolError, TlsFailed, VersionMismatch
from traceml_client.protocol.frames import FrameReader

PING_S: Final = 1.0
SILENT_PINGS: Final = 10
"""Unanswered pings that make a daemon unresponsive. Counted, not timed: a launcher that was stopped blames nobody."""
CONNECT_TIMEOUT_S: Final = 5.0
FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 0.25
"""A refused connect on a local network costs nothing, and ranks are let in only after their launcher."""
_READ_BYTES: Final = 64 * 1024

Hello = Callable[[], messages.NodeHello]
"""The hello without its proof."""


class DaemonLink:
    """From `connect` on it connects, again and again, until closed. All methods belong to the loop's thread."""

    def __init__(
        self,
        *,
        token: Callable[[], str],
        hello: Hello,
        on_salvage_ack: Callable[[messages.SalvageAck], None],
        on_notice: Callable[[str], None],
        trust: tuple[str, str] | None = None,
    ) -> None:
        """`token` is asked on every connection: it may be found later than the daemon; empty: there is none.

        `trust`: (file, name) as in `TlsTrust`; null: nothing is encrypted. Raises ConfigError: it is not there.
        """
        loop = asyncio.get_running_loop()
        self.welcome: asyncio.Future[messages.Welcome] = loop.create_future()
        """Set at the first welcome; an exception (`Refused`, `ProtocolError`) where we are not let in."""
        self.finalized: asyncio.Future[messages.RunFinalized] = loop.create_future()
        self.node_end_taken = asyncio.Event()
        self.unresponsive = asyncio.Event()
        self.connected = asyncio.Event()
        self.clock = ClockOffset()
        self.host, self.port = "", 0
        self._token = token
        self._encryption = _encryption(trust)
        self._hello = hello
        self._on_salvage_ack = on_salvage_ack
        self._on_notice = on_notice
        self._journal: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._num_silent_pings = 0
        self._has_proven = False
        self._has_said_end = False
        self._node_index: int | None = None
        """As the first welcome said: a daemon that was started again must not hand out another."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_welcome(self) -> bool:
        """Whether a daemon has let us in."""
        welcome = self.welcome
        return welcome.done() and not welcome.cancelled() and welcome.exception() is None

    def connect(self, host: str, port: int) -> None:
        """A daemon listens there, or will. Once."""
        self.host, self.port = host, port
        self._tasks = [asyncio.ensure_future(each) for each in (self._stay_connected(), self._ping())]

    def send(self, message: messages.Message) -> None:
        """Say it now or as soon as there is a connection, and again on every later one."""
        self._has_said_end |= isinstance(message, messages.NodeEnded)
        data = encode(message)
        self._journal.append(data)
        if self._writer is not None:
            self._writer.write(data)

    async def send_once(self, message: messages.Message) -> bool:
        """Say it on this connection only, at its pace; False where there is none, or it broke."""
        if self._writer is None:
            return False
        try:
            self._writer.write(encode(message))
            await self._writer.drain()
        except OSError:
            return False
        return True

    def expect_answers(self) -> None:
        """Another daemon listens there from now on: what its predecessor did not answer says nothing of it."""
        self._num_silent_pings = 0
        self.unresponsive.clear()

    def prove(self) -> None:
        """The token is known now: connect again with a proof, if this connection was made without one."""
        if self._writer is not None and not self._has_proven:
            self._writer.transport.abort()

    async def close(self) -> None:
        """Hang up. Legal twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for future in (self.welcome, self.finalized):
            if future.done() and not future.cancelled():
                future.exception()  # a refusal that nobody asked about is no surprise at exit
            future.cancel()

    async def _stay_connected(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                await self._converse()
            except (Refused, VersionMismatch, TlsFailed) as error:
                if not self.welcome.done():
                    self.welcome.set_exception(error)
                return
            except (OSError, ProtocolError, TimeoutError):
                pass
            backoff_s = FIRST_BACKOFF_S if self.connected.is_set() else min(MAX_BACKOFF_S, backoff_s * 2)
            self.connected.clear()
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))

    async def _converse(self) -> None:
        """One connection, from the challenge to its end."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await self._connect()
        try:
            received = _received(reader)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._introduce(received, writer)
            self._writer = writer
            for data in self._journal:
                writer.write(data)
            self.connected.set()
            async for message in received:
                self._take(message)
        finally:
            self._writer = None
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_connection(self.host, self.port, **self._encryption)
        except ssl.SSLError as error:
            from traceml_client.protocol.tls import is_final, why_not

            raise (TlsFailed if is_final(error) else ConnectionError)(why_not(error)) from None

    async def _introduce(self, received: AsyncIterator[messages.FromDaemon], writer: asyncio.StreamWriter) -> None:
        challenge = await anext(received, None)
        if not isinstance(challenge, messages.Challenge):
            raise RemoteProtocolError("no challenge from the aggregator")
        if challenge.version != messages.PROTOCOL_MAJOR:
            raise VersionMismatch(
                f"the aggregator speaks version {challenge.version} of the protocol, we speak {messages.PROTOCOL_MAJOR}"
            )
        hello = self._hello()
        if self._node_index is not None:
            hello = msgspec.structs.replace(hello, node_rank=self._node_index)
        token = self._token()
        self._has_proven = bool(token)
        proven = proof.prove(token, challenge.nonce, "node", hello.run, hello.node_rank)
        writer.write(encode(msgspec.structs.replace(hello, proof=proven)))
        answer = await anext(received, None)
        if isinstance(answer, messages.Refused):
            raise Refused(answer.reason, answer.detail)
        if not isinstance(answer, messages.Welcome):
            raise RemoteProtocolError("no welcome from the aggregator")
        self._num_silent_pings = 0
        self._node_index = answer.node_index
        if not self.welcome.done():
            self.welcome.set_result(answer)

    def _take(self, message: messages.FromDaemon) -> None:
        match message:
            case messages.Pong():
                self._num_silent_pings = 0
                self.clock.measure(sent_ns=message.sent_ns, daemon_ns=message.daemon_ns, received_ns=time.time_ns())
            case messages.SalvageAck():
                self._on_salvage_ack(message)
            case messages.Ack(stream=messages.MARKER_STREAM):
                self.node_end_taken.set()
            case messages.RunFinalized():
                # Before that somebody has told the daemon to stop: it was not the end of the run.
                if self._has_said_end and not self.finalized.done():
                    self.finalized.set_result(message)
            case messages.Notice():
                self._on_notice(message.text)
            case messages.Refused():
                raise Refused(message.reason, message.detail)
            case _:
                pass

    async def _ping(self) -> None:
        """From the start: a daemon may fall silent before it has let us in. One that refused us is not asked."""
        while not self.welcome.done() or self.welcome.exception() is None:
            if self._writer is not None:
                ping = messages.Ping(time.time_ns(), self.clock.offset_ns, self.clock.bound_ns)
                self._writer.write(encode(ping))
            await asyncio.sleep(PING_S)
            self._num_silent_pings += 1
            if self._num_silent_pings >= SILENT_PINGS:
                self.unresponsive.set()
            else:
                self.unresponsive.clear()


def _encryption(trust: tuple[str, str] | None) -> dict[str, Any]:
    """For `open_connection`."""
    if trust is None:
        return {}
    from traceml_client.protocol.tls import TlsTrust, client_context

    return {"ssl": client_context(TlsTrust(*trust)), "server_hostname": trust[1]}


async def _received(reader: asyncio.StreamReader) -> AsyncIterator[messages.FromDaemon]:
    """Messages of one connection, in order, until its end."""
    frames = FrameReader()
    while data := await reader.read(_READ_BYTES):
        for payload in frames.feed(data):
            yield decode_from_daemon(payload)
