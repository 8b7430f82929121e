"""A stranger on the network who knows the protocol and not the token: `python -m tests.harness.attacker PORT SCALE`.

Does everything once, all at the same time, and says in a JSON line how often it did what; keeps its idle, half and
trickling connections up until its standard input ends. Bounded in count and time, and only ever on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import msgspec
import uvloop

from tests.harness.wire import step_columns
from traceml_client.protocol import codec, columns, messages
from traceml_client.protocol.frames import frame
from traceml_client.protocol.messages import NUMBER_ME, PROTOCOL_MAJOR
from traceml_client.protocol.node import NODE_SCHEMA_VERSION, NodeReport
from traceml_client.protocol.proof import prove

GUESS = "guessed token"
AT_ONCE = 64
"""Connections that are busy at one instant, beside those that are held."""
TRICKLE_S = 0.1
_READ_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of each."""

    num_idle: int
    num_half: int
    num_slow: int
    num_junk_connections: int
    num_zero_bytes: int
    num_names: int
    num_junk_frames: int
    num_forgeries: int
    limit_s: float


SCALES = {
    "small": Scale(
        num_idle=300,
        num_half=20,
        num_slow=10,
        num_junk_connections=20,
        num_zero_bytes=16 << 20,
        num_names=4_000,
        num_junk_frames=4_000,
        num_forgeries=4,
        limit_s=10.0,
    ),
    "full": Scale(
        num_idle=10_000,
        num_half=500,
        num_slow=100,
        num_junk_connections=20,
        num_zero_bytes=2 << 30,
        num_names=384_000,
        num_junk_frames=110_000,
        num_forgeries=100,
        limit_s=120.0,
    ),
}

Payload = Callable[[bytes], bytes]
"""(the challenge's nonce) -> what to send."""


class Attacker:
    """All attacks on one port."""

    def __init__(self, port: int, scale: Scale, *, recorded: bytes = b"") -> None:
        self._port = port
        self._scale = scale
        self._recorded = recorded
        self._busy = asyncio.Semaphore(AT_ONCE)
        self._end_s = time.monotonic() + scale.limit_s
        self._held: list[asyncio.StreamWriter] = []
        self._keepers: list[asyncio.Task[None]] = []
        self.counts: dict[str, int] = {}

    async def attack(self) -> None:
        """Each kind once; returns when all of them are through, or their time is."""
        scale = self._scale
        self._keepers = [asyncio.create_task(keep) for keep in (self._trickle(), *self._slow_lorises())]
        await asyncio.gather(
            self._hold("idle", scale.num_idle, b""),
            self._hold("half a hello", scale.num_half, b"\x10\x00\x00\x00half"),
            self._repeat("random bytes", scale.num_junk_connections, lambda _: os.urandom(64 << 10)),
            self._announce_gigabytes(),
            self._repeat("names", scale.num_names // 10, lambda nonce: b"".join(self._named(nonce, 10)), weight=10),
            self._repeat("junk frames", scale.num_junk_frames // 100, lambda _: junk_frames(100), weight=100),
            self._forge(),
            self._repeat("replays", scale.num_forgeries, lambda _: self._recorded),
        )

    async def close(self) -> None:
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for writer in self._held:
            writer.transport.abort()

    # --- what is held ---------------------------------------------------------------------------------------------

    async def _hold(self, name: str, number: int, data: bytes) -> None:
        for _ in range(number):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.write(data)
                self._held.append(writer)
                self._count(name)
            if time.monotonic() > self._end_s:
                return

    async def _trickle(self) -> None:
        """A little junk on a new connection, for ever."""
        for number in itertools.count():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.write(frame(b"\x93\x01\x02") if number % 2 else b"\x05")
                self._held.append(writer)
            await asyncio.sleep(TRICKLE_S)

    def _slow_lorises(self) -> Iterable[object]:
        return [self._slow_loris() for _ in range(self._scale.num_slow)]

    async def _slow_loris(self) -> None:
        """A hello, one byte at a time, and again."""
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                async with self._stranger() as (_, writer, nonce):
                    for byte in rank_hello(nonce, rank=0):
                        writer.write(bytes((byte,)))
                        await asyncio.sleep(TRICKLE_S)
            await asyncio.sleep(TRICKLE_S)

    # --- what is over soon ----------------------------------------------------------------------------------------

    async def _repeat(self, name: str, number: int, payload: Payload, *, weight: int = 1) -> None:
        await asyncio.gather(*(self._knock(name, payload, weight) for _ in range(number)))

    async def _knock(self, name: str, payload: Payload, weight: int = 1) -> None:
        """Connect, send, and read until the daemon has had enough."""
        async with self._busy:
            if time.monotonic() > self._end_s:
                return
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                async with self._stranger() as (reader, writer, nonce):
                    writer.write(payload(nonce))
                    while await reader.read(_READ_BYTES):
                        pass
            self._count(name, weight)

    async def _announce_gigabytes(self) -> None:
        """A frame of 4 GiB, and zeros for as long as they are taken, until the kernel has taken enough."""
        loop, num_sent, zeros = asyncio.get_running_loop(), 0, bytes(64 << 10)
        while num_sent < self._scale.num_zero_bytes and time.monotonic() < self._end_s:
            with contextlib.suppress(OSError), socket.socket() as one:
                one.setblocking(False)
                await loop.sock_connect(one, ("127.0.0.1", self._port))
                await loop.sock_sendall(one, b"\xff\xff\xff\xff")
                while num_sent < self._scale.num_zero_bytes:
                    await loop.sock_sendall(one, zeros)
                    num_sent += len(zeros)
        self._count("zero bytes", num_sent)

    async def _forge(self) -> None:
        """Ranks, launchers and their words; first without a proof, then with a wrong one."""
        forgeries = {
            "forged ranks": lambda nonce, token: b"".join(
                rank_hello(nonce, rank=rank, world_size=8, token=token) + rank_words() for rank in range(8)
            ),
            "forged markers": lambda nonce, token: (
                rank_hello(nonce, rank=1, token=token) + codec.encode(messages.RankFinished(1, (0, 0), 0, None))
            ),
            "forged launchers": lambda nonce, token: node_hello(nonce, token=token) + node_words(),
            "forged runs": lambda nonce, token: rank_hello(nonce, rank=0, run="another run", token=token),
            "forged versions": lambda nonce, token: rank_hello(nonce, rank=0, version=2, token=token),
            "words without a hello": lambda _nonce, _token: rank_words(),
        }
        for name, forge in forgeries.items():
            for token in ("", GUESS):
                await self._repeat(name, self._scale.num_forgeries, lambda nonce, f=forge, t=token: f(nonce, t))  # type: ignore[misc]

    def _named(self, nonce: bytes, number: int) -> Iterable[bytes]:
        return (rank_hello(nonce, rank=0, host=os.urandom(60).hex()) for _ in range(number))

    @contextlib.asynccontextmanager
    async def _stranger(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]]:
        """A connection whose challenge has been read."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            (length,) = struct.unpack("<I", await reader.readexactly(4))
            challenge = codec.decode_from_daemon(await reader.readexactly(length))
            yield reader, writer, challenge.nonce if isinstance(challenge, messages.Challenge) else b""
        finally:
            writer.transport.abort()

    def _count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number


def rank_hello(
    nonce: bytes,
    *,
    rank: int,
    world_size: int = 2,
    run: str = "run-id-1",
    host: str = "host-0",
    token: str = "",
    version: int = PROTOCOL_MAJOR,
) -> bytes:
    proof = prove(token, nonce, "rank", run, 0, rank, 0)
    return codec.encode(
        messages.RankHello(version, run, proof, 0, rank, 0, rank, world_size, world_size, 0, host, 4000 + rank, 5, 0)
    )


def rank_words() -> bytes:
    """Steps that would change a verdict, one that no database takes, and a marker."""
    poison = struct.pack("<q", -(2**63) + 5) * 8
    steps = (
        messages.Records(columns.STEP_STREAM, 0, 100, *step_columns(0, 100, tag=1)),
        messages.Records(columns.STEP_STREAM, 1_000_000_000, 10, *step_columns(1_000_000_000, 10)),
        messages.Records(columns.STEP_STREAM, 2**63 + 5, 1, columns.NARROW, poison),
        messages.RankFinished(1, (10, 0), 0, None),
    )
    return b"".join(map(codec.encode, steps))


def node_hello(nonce: bytes, *, token: str) -> bytes:
    proof = prove(token, nonce, "node", "run-id-1", 0)
    return codec.encode(
        messages.NodeHello(PROTOCOL_MAJOR, "run-id-1", proof, NUMBER_ME if token else 0, 1, 2, "host-0", 4242, 5, True)
    )


def node_words() -> bytes:
    """That training was interrupted, and has failed."""
    report = NodeReport(
        schema_version=NODE_SCHEMA_VERSION,
        run_name="test-run",
        run_id="run-id-1",
        node_index=0,
        host="host-0",
        launcher_pid=4242,
        started_ns=1,
        ended_ns=2,
        torchrun_pid=1,
        exit_code=1,
        signal=None,
        interrupted_by=None,
        ranks=(),
    )
    return codec.encode(messages.Interrupted("SIGTERM", 1)) + codec.encode(messages.NodeEnded(report))


def junk_frames(number: int) -> bytes:
    """Frames that are msgpack: deep nests, wrong types, unknown messages."""
    kinds = (b"\x91" * 3000, msgspec.msgpack.encode([2, "x", [], {}]), msgspec.msgpack.encode({"meta": {"rank": 7}}))
    return b"".join(frame(kinds[index % len(kinds)]) for index in range(number))


async def main() -> None:
    port, scale = int(sys.argv[1]), SCALES[sys.argv[2]]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attacker = Attacker(port, scale, recorded=bytes.fromhex(sys.argv[3]))
    await attacker.attack()
    print(json.dumps(attacker.counts), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await attacker.close()


if __name__ == "__main__":
    uvloop.run(main())
