"""How long this rank's DataLoader workers take to load: counted by the workers, read by the rank. Pure of torch.

A rank whose batches are always ready may still be limited by its loader: just as fast as the slowest rank's, which all
wait for. Its own waiting does not tell that. So forked workers add up their loading in memory that they share with the
rank; each has its own words. Spawned workers know nothing of this.
"""

from __future__ import annotations

import mmap
from typing import Final

_MAX_WORKERS: Final = 255
"""Of one loader; more share words, and a sum may then miss one."""


class LoaderTimes:
    """One page of shared memory."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, 16 * (_MAX_WORKERS + 1))).cast("q")

    def see_workers(self, num_workers: int) -> None:
        """In the rank: training's loader starts so many."""
        self._words[0] = num_workers

    def add(self, worker: int, duration_ns: int) -> None:
        """In a worker: it has loaded a batch."""
        place = 2 + 2 * (worker % _MAX_WORKERS)
        self._words[place] += 1
        self._words[place + 1] += duration_ns

    def totals(self) -> tuple[int, int, int]:
        """(workers, batches loaded, nanoseconds of loading them, of all workers together)."""
        return self._words[0], sum(self._words[2::2]), sum(self._words[3::2])


TIMES: Final = LoaderTimes()
"""This rank's. Forked workers inherit it."""
