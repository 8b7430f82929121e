"""A whole job of simulated peers that outlives its daemon: they connect again and say again what they have to say."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from traceml_client.protocol.errors import Refused
from traceml_client.protocol.messages import UNKNOWN_NODE, RunFinalized

_LOST: Final = (ConnectionError, TimeoutError, OSError)
_AGAIN_S: Final = 0.02


@dataclass(kw_only=True)
class SimJob:
    """One node, `num_ranks` ranks, each of which makes `num_steps` steps; frames of random sizes."""

    port: int
    num_ranks: int
    num_steps: int
    token: str = "a secret"
    run: str = "run-id-1"
    seed: int = 0
    steps_per_s: float | None = None
    """Null: as fast as they are taken."""
    ranks: list[SimRank] = field(default_factory=list)
    finalized: RunFinalized | None = None

    def __post_init__(self) -> None:
        self._node = SimNode(port=self.port, run=self.run, token=self.token, local_world_size=self.num_ranks)
        self._welcomed = asyncio.Event()
        self._choose = random.Random(self.seed)
        self.ranks = [self._new_rank(rank) for rank in range(self.num_ranks)]

    @property
    def num_acked(self) -> int:
        """Step records that the daemon has acknowledged, over all ranks."""
        return sum(rank.acked[0] for rank in self.ranks)

    async def run_to_its_end(self) -> RunFinalized:
        """Until the reports are written, however many daemons that takes."""
        told = asyncio.ensure_future(_insist(self._hold_node))
        try:
            async with asyncio.TaskGroup() as group:
                for rank in self.ranks:
                    group.create_task(_insist(lambda rank=rank: self._live(rank)))  # type: ignore[misc]
        finally:
            told.cancel()
            await asyncio.gather(told, return_exceptions=True)
            await self._node.hang_up()
        return await self.say_end()

    async def say_end(self) -> RunFinalized:
        """Training is over on this node; to a daemon that came after the report, as its launcher would, once more."""
        await _insist(self._end)
        assert self.finalized is not None
        return self.finalized

    def _new_rank(self, number: int) -> SimRank:
        return SimRank(
            port=self.port,
            rank=number,
            local_rank=number,
            world_size=self.num_ranks,
            local_world_size=self.num_ranks,
            node_index=0,
            attempt=0,
            run=self.run,
            token=self.token,
        )

    async def _join_node(self) -> None:
        """Say who we are and what has happened so far, as a launcher does after every reconnect."""
        await self._node.hang_up()
        await self._node.join()
        self._node.started.clear()
        await self._node.start_training()
        for rank in self.ranks:
            await self._node.start_rank(rank)

    async def _hold_node(self) -> None:
        """Keep the launcher's connection until we are cancelled; a lost one is made anew."""
        await self._join_node()
        while True:
            try:
                await self._node.receive(RunFinalized, within_s=1.0)
            except TimeoutError:
                continue

    async def _live(self, rank: SimRank) -> None:
        """One connection of a rank, to the acknowledgement of its marker if nothing comes between."""
        try:
            await rank.join()
            while rank.next_seq[0] < self.num_steps:
                count = min(self._choose.randint(1, 400), self.num_steps - rank.next_seq[0])
                await rank.send_steps(count, per_frame=250)
                if self.steps_per_s is not None:
                    await asyncio.sleep(count / self.steps_per_s)
                elif rank.next_seq[0] - rank.acked[0] > 2000:
                    await rank.wait_acked(rank.next_seq[0] - 1000)
            await rank.wait_acked()
            await rank.finish()
        finally:
            await rank.hang_up()

    async def _end(self) -> None:
        """The launcher's last word; the run is finalized."""
        try:
            await self._join_node()
            await self._node.end(self._node.report(*map(rank_end, self.ranks)))
            self.finalized = await self._node.wait_finalized()
        finally:
            await self._node.hang_up()


async def _insist(live: Callable[[], Awaitable[None]]) -> None:
    """Do it, from the beginning on, until it comes to its end without losing the daemon."""
    while True:
        try:
            await live()
        except Refused as refusal:
            if refusal.reason != UNKNOWN_NODE:
                raise
        except _LOST:
            pass
        else:
            return
        await asyncio.sleep(_AGAIN_S)
