"""The workers of this node: who took pipes and a ring, which attempt each is, and in which order they died."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from traceml_client.protocol.handover import HandoverRequest
from traceml_client.protocol.node import ExitSource
from traceml_client.protocol.ring import RingReader
from traceml_launch.ranks.ring_memory import RankRecord, RingMemory
from traceml_launch.system import pidfds, processes
from traceml_launch.waiting import unless

ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGKILL)


@dataclass(slots=True, kw_only=True)
class Worker:
    """One incarnation of a rank, as its launcher sees it."""

    request: HandoverRequest
    attempt: int
    rank_dir: Path
    ring: RingMemory | None
    """Null once the worker is retired."""
    pidfd: int | None
    """Null where it was gone before we could look."""
    started_ns: int
    died_ns: int | None = None
    death_order: int | None = None
    wait_status: int | None = None
    exit_source: ExitSource = "unknown"
    error_file: str | None = None
    """Where torchelastic wants the error of this worker."""
    stopped_by_launcher: str | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    is_settled: bool = False
    """Dead, and its records are with the daemon or in a file."""
    _last_record: RankRecord = field(default_factory=RankRecord)

    @property
    def pid(self) -> int:
        return self.request.pid

    @property
    def reader(self) -> RingReader | None:
        """Its records; null once it is retired, or where it has destroyed the header."""
        return self.ring.reader() if self.ring is not None else None

    @property
    def record(self) -> RankRecord:
        """What its recorder says of it, now or last."""
        return self._last_record if self.ring is None else self.ring.record()

    def retire(self) -> None:
        """Give its memory back, and its descriptor once that has told all. Legal twice."""
        if self.ring is not None:
            self._last_record = self.record
            self.ring.close()
            self.ring = None
        if self.pidfd is not None and self.exit_source == "pidfd":
            os.close(self.pidfd)
            self.pidfd = None


class WorkerTable:
    """All incarnations that ever were on this node, in the order of their arrival."""

    def __init__(self, on_death: Callable[[Worker], None]) -> None:
        """`on_death` is called in the order of deaths, from the loop."""
        self._on_death = on_death
        self._workers: list[Worker] = []
        self._num_deaths = 0
        self._loop = asyncio.get_running_loop()

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def next_attempt(self, local_rank: int) -> int:
        """0, 1, 2...: torchrun's restart count does not change when a membership change restarts its workers."""
        return sum(each.request.local_rank == local_rank for each in self._workers)

    def executed_anew(self, request: HandoverRequest) -> Worker | None:
        """The worker that this process is already: its script has executed itself anew. It goes on in the same ring."""
        identity = (request.pid, request.start_ticks)
        return next((w for w in self.living() if (w.pid, w.request.start_ticks) == identity and w.ring), None)

    def add(self, worker: Worker) -> None:
        """Begin to watch for its death."""
        self._workers.append(worker)
        self.retire_settled()
        if worker.pidfd is None:
            self._note_death(worker)
        else:
            self._loop.add_reader(worker.pidfd, self._note_death, worker)

    def living(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.died_ns is None]

    def retire_settled(self) -> None:
        """Of earlier attempts of a slot only what fits a report is kept: a job may restart a hundred times."""
        youngest = {worker.request.local_rank: worker for worker in self._workers}
        for worker in self._workers:
            if worker.is_settled and youngest[worker.request.local_rank] is not worker:
                worker.retire()

    def pids(self) -> set[int]:
        """Of all incarnations: a session of that number belongs to a rank."""
        return {worker.pid for worker in self._workers}

    async def wait_all_gone(self, *, timeout_s: float) -> bool:
        """Whether every worker has died within that time."""
        gone = asyncio.gather(*(worker.gone.wait() for worker in self._workers))
        return await unless(gone, timeout_s=timeout_s) is not None

    def signal_living(self, number: int) -> None:
        for worker in self.living():
            is_sent = worker.pidfd is not None and pidfds.send_signal(worker.pidfd, number)
            if is_sent and number in ENDING_SIGNALS:
                worker.stopped_by_launcher = pidfds.signal_name(number)

    def settle_exits(self) -> None:
        """Ask once more how they ended: the kernel tells it only after the parent has reaped them."""
        for worker in self._workers:
            if worker.pidfd is not None and worker.died_ns is not None and worker.exit_source != "pidfd":
                _learn_exit(worker)

    def close(self) -> None:
        """Stop watching and give all descriptors back. Legal twice."""
        for worker in self._workers:
            worker.retire()
            if worker.pidfd is not None:
                self._loop.remove_reader(worker.pidfd)
                os.close(worker.pidfd)
                worker.pidfd = None

    def _note_death(self, worker: Worker) -> None:
        worker.died_ns = time.time_ns()
        worker.death_order = self._num_deaths
        self._num_deaths += 1
        if worker.pidfd is not None:
            self._loop.remove_reader(worker.pidfd)
            _learn_exit(worker)
        worker.gone.set()
        self._on_death(worker)


def _learn_exit(worker: Worker) -> None:
    """How it ended, from the best source that knows now; a worker that torchrun orphaned is ours to reap."""
    assert worker.pidfd is not None
    status = pidfds.wait_status(worker.pidfd)
    if status is not None:
        worker.wait_status, worker.exit_source = status, "pidfd"
        return
    stat = processes.read_stat(worker.pid)
    if stat is not None and stat.is_zombie and stat.start_ticks == worker.request.start_ticks:
        worker.wait_status, worker.exit_source = stat.wait_status, "proc_stat"
    status = pidfds.reap(worker.pidfd)
    if status is not None:
        worker.wait_status = status
        worker.exit_source = "pidfd" if pidfds.wait_status(worker.pidfd) is not None else "proc_stat"
