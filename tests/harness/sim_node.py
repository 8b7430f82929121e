"""A launcher that speaks the real protocol: it vouches for processes that do not exist."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TypeVar

from tests.harness.sim_rank import SimRank
from tests.harness.wire import Wire, step_columns
from traceml_client.protocol import messages
from traceml_client.protocol.columns import STEP_STREAM
from traceml_client.protocol.errors import Refused as RefusedError
from traceml_client.protocol.messages import Message, NodeHello, Refused, RunFinalized, SalvageAck, Welcome
from traceml_client.protocol.node import NODE_SCHEMA_VERSION, NodeReport, RankEnd
from traceml_client.protocol.proof import prove

M = TypeVar("M", bound=Message)


@dataclass(kw_only=True)
class SimNode:
    """One node's launcher."""

    port: int
    node_rank: int = 0
    nnodes: int = 1
    local_world_size: int = 1
    run: str = ""
    token: str = ""
    host: str = "host-0"
    pid: int = 4242
    start_ticks: int = 5
    is_owner: bool = True
    wire: Wire | None = None
    welcome: Welcome | None = None
    started: list[SimRank] = field(default_factory=list)

    async def join(self) -> Welcome:
        """Connect, prove, be welcomed. Raises RefusedError with the daemon's reason."""
        self.wire = await Wire.connect(self.port)
        await self.wire.send(
            NodeHello(
                version=messages.PROTOCOL_MAJOR,
                run=self.run,
                proof=prove(self.token, self.wire.nonce, "node", self.run, self.node_rank),
                node_rank=self.node_rank,
                nnodes=self.nnodes,
                local_world_size=self.local_world_size,
                host=self.host,
                pid=self.pid,
                start_ticks=self.start_ticks,
                is_owner=self.is_owner,
            )
        )
        answer = await self.wire.receive()
        if isinstance(answer, Refused):
            await self.wire.close()
            raise RefusedError(answer.reason, answer.detail)
        assert isinstance(answer, Welcome)
        self.welcome = answer
        return answer

    async def start_training(self) -> None:
        await self.say(messages.TrainingStarted(time.time_ns(), 4243))

    async def start_rank(self, rank: SimRank) -> SimRank:
        """A worker takes its pipes: say so, and give it what the hand-over would."""
        assert self.welcome is not None
        rank.node_index = self.welcome.node_index
        rank.attempt = max(0, rank.attempt)
        rank.run, rank.token, rank.host = self.welcome.run_id, self.token, self.host
        rank.local_world_size = self.local_world_size
        local_rank = rank.rank if rank.local_rank is None else rank.local_rank
        rank.local_rank = local_rank
        await self.say(
            messages.RankStarted(
                local_rank=local_rank,
                attempt=rank.attempt,
                rank=rank.rank,
                world_size=rank.world_size,
                local_world_size=self.local_world_size,
                torch_restart_count=rank.torch_restart_count,
                pid=rank.pid,
                start_ticks=rank.start_ticks,
                started_ns=time.time_ns(),
            )
        )
        self.started.append(rank)
        return rank

    async def see_exit(self, rank: SimRank, *, order: int = 0) -> None:
        await self.say(messages.RankExited(rank.local_rank or 0, rank.attempt, time.time_ns(), order))

    async def salvage(self, rank: SimRank, first_seq: int, count: int) -> SalvageAck:
        """Hand in records of a dead rank; return what the daemon says it has."""
        records = messages.Records(STEP_STREAM, first_seq, count, *step_columns(first_seq, count))
        await self.say(messages.Salvaged(rank.local_rank or 0, rank.attempt, records))
        while True:
            acked = await self.receive(SalvageAck)
            if acked.next_seq >= first_seq + count:
                return acked

    async def interrupt(self, signal: str = "SIGTERM", *, at_ns: int | None = None) -> None:
        await self.say(messages.Interrupted(signal, time.time_ns() if at_ns is None else at_ns))

    def report(
        self,
        *ends: RankEnd,
        exit_code: int | None = 0,
        signal: str | None = None,
        interrupted_by: str | None = None,
    ) -> NodeReport:
        assert self.welcome is not None
        return NodeReport(
            schema_version=NODE_SCHEMA_VERSION,
            run_name=self.welcome.run_name,
            run_id=self.welcome.run_id,
            node_index=self.welcome.node_index,
            host=self.host,
            launcher_pid=self.pid,
            started_ns=1,
            ended_ns=time.time_ns(),
            torchrun_pid=4243,
            exit_code=exit_code,
            signal=signal,
            interrupted_by=interrupted_by,
            ranks=ends,
        )

    async def end(self, report: NodeReport, *, is_final: bool = True) -> None:
        await self.say(messages.NodeEnded(report, is_final))

    async def wait_finalized(self, *, within_s: float = 20.0) -> RunFinalized:
        return await self.receive(RunFinalized, within_s=within_s)

    async def receive(self, kind: type[M], *, within_s: float = 10.0) -> M:
        """The next message of this kind; others are passed over."""
        while True:
            answer = await self.connected.receive(within_s=within_s)
            if isinstance(answer, kind):
                return answer

    async def say(self, message: Message) -> None:
        await self.connected.send(message)

    async def hang_up(self) -> None:
        """Close a connection that the other side may have lost already."""
        with contextlib.suppress(ConnectionError):
            await self.close()

    def reset(self) -> None:
        self.connected.reset()

    async def close(self) -> None:
        if self.wire is not None:
            await self.wire.close()

    @property
    def connected(self) -> Wire:
        assert self.wire is not None, "join first"
        return self.wire


def rank_end(
    rank: SimRank,
    *,
    exit_code: int | None = 0,
    signal: str | None = None,
    is_marker_sent: bool = True,
    num_steps_recorded: int | None = None,
    death_order: int = 0,
) -> RankEnd:
    """What a launcher says of a rank's end."""
    steps = rank.next_seq[0] if num_steps_recorded is None else num_steps_recorded
    return RankEnd(
        rank=rank.rank,
        local_rank=rank.local_rank or 0,
        attempt=max(0, rank.attempt),
        torch_restart_count=rank.torch_restart_count,
        pid=rank.pid,
        started_ns=1,
        died_ns=2,
        death_order=death_order,
        exit_code=None if signal else exit_code,
        signal=signal,
        exit_source="pidfd",
        is_marker_sent=is_marker_sent,
        num_steps_recorded=steps,
    )
