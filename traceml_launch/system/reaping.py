"""Ends what is left of the run after training, as `leftovers` decides, while the reports are being written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from traceml_client.protocol.node import ProcessLeft
from traceml_launch.system import processes
from traceml_launch.system.leftovers import Leftovers
from traceml_launch.system.processes import ProcessStat

LOOK_AGAIN_S: Final = 0.1
"""Processes end at their own time, and may start others before they do."""


class Reaping:
    """Begins at once. `Scan` returns the run's processes that live now."""

    def __init__(self, leftovers: Leftovers, scan: Callable[[], list[ProcessStat]], *, hurried: asyncio.Event) -> None:
        """`hurried`: from then on nothing lingers."""
        self._leftovers = leftovers
        self._scan = scan
        self._hurried = hurried
        self._loop = asyncio.get_running_loop()
        self._may_linger = asyncio.Event()
        self._task = self._loop.create_task(self._run())

    async def finish(self) -> tuple[ProcessLeft, ...]:
        """The reports are written: let what was detached linger, then end it; return what became of everything."""
        self._may_linger.set()
        await self._task
        return self._leftovers.result()

    async def _run(self) -> None:
        self._look()
        while self._leftovers.has_attached(now_s=self._loop.time()):
            await asyncio.sleep(LOOK_AGAIN_S)
            self._look()
        await self._may_linger.wait()
        self._look()
        while self._leftovers.has_any(now_s=self._loop.time()):
            await asyncio.sleep(LOOK_AGAIN_S)
            self._look()

    def _look(self) -> None:
        if self._hurried.is_set():
            self._leftovers.hurry(now_s=self._loop.time())
        found = self._scan()
        for stat, number in self._leftovers.found(found, now_s=self._loop.time()):
            processes.signal_process(stat.pid, stat.start_ticks, number)
