"""A clock moved by hand: timeouts of minutes take no time, and always the same."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from tests.harness.until import until

WALL_NS_AT_ZERO = 1_800_000_000_000_000_000
"""Wall time of the hand clock's start: in 2027, so that a real time in its place is seen."""


class HandTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandClock:
    """A `traceml_daemon.clock.Clock` that stands still until it is moved."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, HandTimer]] = []

    def now_s(self) -> float:
        return self._now_s

    def wall_ns(self) -> int:
        return WALL_NS_AT_ZERO + int(self._now_s * 1e9)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> HandTimer:
        timer = HandTimer(callback)
        heapq.heappush(self._timers, (when_s, next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Move on, stopping at each timer on the way; the loop gets its turns in between."""
        end_s = self._now_s + seconds
        while (due_s := self._next_s()) is not None and due_s <= end_s:
            await self._ring(due_s)
        self._now_s = end_s
        await turns()

    async def run_until(self, is_true: Callable[[], bool], reason: str, *, limit_s: float) -> float:
        """Move on from timer to timer until the condition holds; return how many seconds that took.

        What happens outside this clock (sockets, the store's thread) gets a moment of real time before each move.

        Raises:
            TimeoutError: it did not hold within `limit_s` of this clock.
        """
        started_s = self._now_s
        while not await _holds(is_true):
            due_s = self._next_s()
            if due_s is None or due_s - started_s > limit_s:
                raise TimeoutError(f"{reason}: not within {limit_s:g} s of the hand clock")
            await self._ring(due_s)
        return self._now_s - started_s

    def _next_s(self) -> float | None:
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    async def _ring(self, due_s: float) -> None:
        self._now_s = max(self._now_s, due_s)
        heapq.heappop(self._timers)[2].callback()
        await turns()


async def turns(count: int = 5) -> None:
    """Let everything that is ready in the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def _holds(is_true: Callable[[], bool]) -> bool:
    try:
        await until(is_true, "the condition", within_s=0.05)
    except TimeoutError:
        return False
    return True
