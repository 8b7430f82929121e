"""What the daemon cannot see by itself is handed in: records of dead ranks, and files where none are shared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from traceml_client.protocol import launch, messages
from traceml_launch.aggregator.telemetry import Telemetry
from traceml_launch.output.logfile import read_tail
from traceml_launch.ranks import recorders
from traceml_launch.ranks.recorders import Salvage
from traceml_launch.ranks.workers import Worker, WorkerTable
from traceml_launch.waiting import unless

SALVAGE_S: Final = 10.0
"""65,536 records of each of eight ranks take about a second; past this the recorders are kept as files."""
REPLACED_S: Final = 45.0
"""For our own daemon: three times the ten seconds until it counts as silent, and what a start takes."""
RETRY_S: Final = 0.1
TAIL_BYTES: Final = 64 * 1024
TAILS_A_MESSAGE: Final = 8
"""512 KiB, half of what a frame may hold."""


class HandingIn:
    """Begins with a rank's death; what the daemon does not take is kept in the rank's folder."""

    def __init__(self, workers: WorkerTable, telemetry: Telemetry, *, on_problem: Callable[[str], None]) -> None:
        self._workers = workers
        self._telemetry = telemetry
        self._on_problem = on_problem
        self._salvage = Salvage()
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_ack = self._salvage.on_ack

    def begin(self, worker: Worker) -> None:
        """It has died."""
        if not worker.record.is_marker_sent:
            # At once, while we live: what it recorded last is evidence.
            self._keep([worker])
        task = asyncio.get_running_loop().create_task(self._settle(worker, SALVAGE_S))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Training is over: return when the records of all its dead ranks are with the daemon or in files."""
        await self._guarded(*self._tasks)
        # Once more for those that died while the connection was down, or that a silent daemon did not take: it is
        # found out by its pings, and another one started.
        timeout_s = SALVAGE_S if self._telemetry.process is None else REPLACED_S
        left = [each for each in self._workers if each.ring is not None]
        await self._guarded(*(self._settle(worker, timeout_s) for worker in left))
        self.keep_unstored()

    def keep_unstored(self) -> None:
        """Keep the recorders of all ranks whose records or marker the daemon is not known to have stored."""
        self._keep(worker for worker in self._workers if not self._is_stored(worker))

    async def close(self) -> None:
        """Legal twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _settle(self, worker: Worker, timeout_s: float) -> None:
        try:
            if self._telemetry.link.is_welcome:
                await unless(self._hand_in(worker), self._telemetry.ended, timeout_s=timeout_s)
        finally:
            if not self._is_stored(worker):
                self._keep([worker])
            worker.is_settled = True
            self._workers.retire_settled()

    async def _hand_in(self, worker: Worker) -> None:
        """Over one connection after another, until the daemon has it all."""
        link = self._telemetry.link
        while not self._salvage.is_complete(worker):
            await link.connected.wait()
            if not await self._salvage.hand_in(worker, link):
                await asyncio.sleep(RETRY_S)

    async def _guarded(self, *work: Awaitable[None]) -> None:
        """An error of ours with one rank is said, and costs the others nothing."""
        for result in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(result, Exception):
                self._on_problem(f"a dead rank's records were not handed in: {type(result).__name__}: {result}")

    def _is_stored(self, worker: Worker) -> bool:
        return self._salvage.is_complete(worker) and worker.record.is_marker_stored

    def _keep(self, workers: Iterable[Worker]) -> None:
        for problem in recorders.keep(workers):
            self._on_problem(problem)


def tail_messages(workers: Iterable[Worker], node_index: int) -> list[messages.NodeFiles]:
    """The ends of the ranks' standard error, for a daemon that does not see this node's folder.

    At least one message, be it empty: by it the daemon knows that it has to keep this node's report itself.
    """
    tails = []
    for worker in workers:
        data = read_tail(worker.rank_dir / "stderr.log", TAIL_BYTES)
        if data:
            relative = launch.layout_rank_dir(node_index, worker.request.rank, worker.attempt)
            tails.append(messages.Tail(path=f"{relative}/stderr.log", data=data))
    starts = range(0, max(1, len(tails)), TAILS_A_MESSAGE)
    return [messages.NodeFiles(tails=tuple(tails[start : start + TAILS_A_MESSAGE])) for start in starts]
