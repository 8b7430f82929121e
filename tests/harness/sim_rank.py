"""A rank that speaks the real protocol, and every way in which one can misbehave."""

from __future__ import annotations

import contextlib
import itertools
import ssl
import time
from dataclasses import dataclass, field

from tests.harness.wire import Wire, step_columns
from traceml_client.protocol import codec
from traceml_client.protocol.columns import STEP_STREAM
from traceml_client.protocol.errors import Refused as RefusedError
from traceml_client.protocol.messages import (
    MARKER_STREAM,
    NUMBER_ME,
    PROTOCOL_MAJOR,
    Ack,
    Message,
    Ping,
    Pong,
    RankFailed,
    RankFinished,
    RankHello,
    Records,
    Refused,
    Welcome,
)
from traceml_client.protocol.node import RankError
from traceml_client.protocol.proof import prove

_pids = itertools.count(100_001)


@dataclass(kw_only=True)
class SimRank:
    """One process of a job. Under a launcher give it its node index and attempt; alone it asks for both."""

    port: int
    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    local_world_size: int | None = None
    node_index: int = NUMBER_ME
    attempt: int = NUMBER_ME
    run: str = ""
    token: str = ""
    host: str = "host-0"
    torch_restart_count: int = 0
    version: int = PROTOCOL_MAJOR
    pid: int = field(default_factory=lambda: next(_pids))
    start_ticks: int = 5
    wall_minus_monotonic_ns: int = 1_700_000_000_000_000_000
    next_seq: list[int] = field(default_factory=lambda: [0, 0])
    """Per stream, the next record to send."""
    acked: list[int] = field(default_factory=lambda: [0, 0])
    tls: ssl.SSLContext | None = None
    wire: Wire | None = None
    welcome: Welcome | None = None

    # --- the orderly life -----------------------------------------------------------------------------------------

    async def join(self) -> Welcome:
        """Connect, prove, be welcomed. Raises RefusedError with the daemon's reason."""
        self.wire = await Wire.connect(self.port, tls=self.tls)
        await self.wire.send(self.hello(self.wire.nonce))
        answer = await self.wire.receive()
        if isinstance(answer, Refused):
            await self.wire.close()
            raise RefusedError(answer.reason, answer.detail)
        assert isinstance(answer, Welcome)
        self.welcome = answer
        self.next_seq = list(answer.next_seq)
        return answer

    def hello(self, nonce: bytes) -> RankHello:
        local_rank = self.rank if self.local_rank is None else self.local_rank
        claims = ("rank", self.run, self.node_index, local_rank, self.attempt)
        return RankHello(
            version=self.version,
            run=self.run,
            proof=prove(self.token, nonce, *claims),
            node_index=self.node_index,
            local_rank=local_rank,
            attempt=self.attempt,
            rank=self.rank,
            world_size=self.world_size,
            local_world_size=self.local_world_size or self.world_size,
            torch_restart_count=self.torch_restart_count,
            host=self.host,
            pid=self.pid,
            start_ticks=self.start_ticks,
            wall_minus_monotonic_ns=self.wall_minus_monotonic_ns,
        )

    async def send_steps(self, count: int, *, per_frame: int = 100, stream: int = STEP_STREAM) -> None:
        """The next `count` records of a stream."""
        end = self.next_seq[stream] + count
        while self.next_seq[stream] < end:
            first = self.next_seq[stream]
            await self.send_records(first, min(per_frame, end - first), stream=stream)

    async def send_records(self, first_seq: int, count: int, *, stream: int = STEP_STREAM) -> None:
        """Any records, also ones that were sent before or that leave a gap."""
        await self.say(Records(stream, first_seq, count, *step_columns(first_seq, count)))
        self.next_seq[stream] = max(self.next_seq[stream], first_seq + count)

    async def wait_acked(self, next_seq: int | None = None, *, stream: int = STEP_STREAM) -> None:
        """Until everything before `next_seq` (all that was sent) is acknowledged."""
        wanted = self.next_seq[stream] if next_seq is None else next_seq
        while self.acked[stream] < wanted:
            self.note(await self.connected.receive())

    async def finish(self, *, exit_code: int | None = 0, error: RankError | None = None, num_lost: int = 0) -> None:
        """The marker, and its acknowledgement. `num_lost` steps were recorded and never sent."""
        await self.say_finished(exit_code=exit_code, error=error, num_lost=num_lost)
        while True:
            answer = await self.connected.receive()
            self.note(answer)
            if isinstance(answer, Ack) and answer.stream == MARKER_STREAM:
                return

    async def say_finished(
        self, *, exit_code: int | None = 0, error: RankError | None = None, num_lost: int = 0
    ) -> None:
        steps, samples = self.next_seq
        await self.say(RankFinished(time.time_ns(), (steps + num_lost, samples), exit_code, error))

    async def fail(self, error: RankError) -> None:
        """The record at the raise."""
        await self.say(RankFailed(error))

    async def ping(self, *, offset_ns: int = 0, bound_ns: int = -1) -> Pong:
        await self.say(Ping(time.time_ns(), offset_ns, bound_ns))
        while True:
            answer = await self.connected.receive()
            self.note(answer)
            if isinstance(answer, Pong):
                return answer

    async def close(self) -> None:
        """FIN."""
        if self.wire is not None:
            await self.wire.close()

    # --- the disorderly ones --------------------------------------------------------------------------------------

    async def hang_up(self) -> None:
        """Close a connection that the other side may have lost already."""
        with contextlib.suppress(ConnectionError):
            await self.close()

    def reset(self) -> None:
        """RST."""
        self.connected.reset()

    async def send_half_frame(self) -> None:
        """The first half of a frame, and then nothing."""
        whole = codec.encode(Records(STEP_STREAM, self.next_seq[0], 10, *step_columns(self.next_seq[0], 10)))
        await self.connected.send_bytes(whole[: len(whole) // 2])

    async def send_bytes(self, data: bytes) -> None:
        await self.connected.send_bytes(data)

    async def rejoin(self) -> Welcome:
        """The same process on a new connection; goes on where the daemon says."""
        return await self.join()

    async def say(self, message: Message) -> None:
        """Anything, in or out of turn."""
        await self.connected.send(message)

    def note(self, answer: object) -> None:
        if isinstance(answer, Ack) and answer.stream != MARKER_STREAM:
            self.acked[answer.stream] = max(self.acked[answer.stream], answer.next_seq)

    @property
    def connected(self) -> Wire:
        assert self.wire is not None, "join first"
        return self.wire
