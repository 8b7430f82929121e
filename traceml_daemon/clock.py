"""Time as the shell sees it, behind one small door, so that a test can move it by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now_s(self) -> float:
        """Monotonic seconds."""
        ...

    def wall_ns(self) -> int:
        """Wall-clock nanoseconds."""
        ...

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once `now_s()` has reached `when_s`."""
        ...


class LoopClock:
    """The running event loop's time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_s(self) -> float:
        return time.monotonic()

    def wall_ns(self) -> int:
        return time.time_ns()

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(max(0.0, when_s - time.monotonic()), callback)
