"""Which of the run's remaining processes get which signal when, after training is over.

What a rank detached on purpose (a session of its own: an upload, a tracker) may finish until the linger time is over;
everything else of the run is asked to end at once and killed shortly after.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from traceml_client.protocol.node import ProcessLeft
from traceml_launch.system import processes
from traceml_launch.system.processes import ProcessStat

TERM_TO_KILL_S: Final = 1.0
"""Time to flush and unlink; these processes have lost their training already."""
LOOK_AGAIN_S: Final = 0.1
"""Processes end at their own time, and may start others before they do."""
Ending = Literal["ended_by_itself", "terminated", "killed", "still_running"]

GIVE_UP_S: Final = 3.0
"""A process that outlives SIGKILL for this long sits in the kernel (a hung disk or device); nobody can end it."""


@dataclass(slots=True, kw_only=True)
class _Leftover:
    stat: ProcessStat
    command: str
    is_detached: bool
    terminated_at_s: float | None = None
    killed_at_s: float | None = None
    is_there: bool = True


class Leftovers:
    """Told again and again what is there, answers whom to signal, and knows in the end what became of each."""

    def __init__(
        self, *, attached_sessions: Collection[int], linger_until_s: float, command_of: Callable[[int], str]
    ) -> None:
        """`attached_sessions`: of the launcher, torchrun and the ranks; any other session was detached."""
        self._attached_sessions = attached_sessions
        self._linger_until_s = linger_until_s
        self._command_of = command_of
        self._known: dict[tuple[int, int], _Leftover] = {}

    def hurry(self, *, now_s: float) -> None:
        """Nothing may linger any longer."""
        self._linger_until_s = min(self._linger_until_s, now_s)

    def found(self, stats: Iterable[ProcessStat], *, now_s: float) -> list[tuple[ProcessStat, signal.Signals]]:
        """Take the processes that are there now; return the signals to send."""
        present = {(stat.pid, stat.start_ticks): stat for stat in stats}
        for key, leftover in self._known.items():
            leftover.is_there = key in present
        for key, stat in present.items():
            if key not in self._known:
                is_detached = stat.session not in self._attached_sessions
                self._known[key] = _Leftover(stat=stat, command=self._command_of(stat.pid), is_detached=is_detached)
        due = []
        for leftover in self._known.values():
            number = self._signal_due(leftover, now_s=now_s) if leftover.is_there else None
            if number is not None:
                due.append((leftover.stat, number))
        return due

    def has_any(self, *, now_s: float, is_attached: bool = False) -> bool:
        """Whether it is worth while to look again: something (that may not linger) has not outlived SIGKILL."""
        return any(
            each.is_there and not (is_attached and each.is_detached) and not _is_given_up(each, now_s=now_s)
            for each in self._known.values()
        )

    def result(self) -> tuple[ProcessLeft, ...]:
        """What was left and what became of it."""
        return tuple(
            ProcessLeft(pid=each.stat.pid, command=each.command, is_detached=each.is_detached, ending=_ending_of(each))
            for each in self._known.values()
        )

    def _signal_due(self, leftover: _Leftover, *, now_s: float) -> signal.Signals | None:
        if leftover.terminated_at_s is None:
            if leftover.is_detached and now_s < self._linger_until_s:
                return None
            leftover.terminated_at_s = now_s
            return signal.SIGTERM
        if leftover.killed_at_s is None and now_s >= leftover.terminated_at_s + TERM_TO_KILL_S:
            leftover.killed_at_s = now_s
            return signal.SIGKILL
        return None


def _is_given_up(leftover: _Leftover, *, now_s: float) -> bool:
    return leftover.killed_at_s is not None and now_s >= leftover.killed_at_s + GIVE_UP_S


def _ending_of(leftover: _Leftover) -> Ending:
    if leftover.is_there:
        return "still_running"
    if leftover.killed_at_s is not None:
        return "killed"
    return "terminated" if leftover.terminated_at_s is not None else "ended_by_itself"


class Reaping:
    """Does that while the reports are being written; begins at once. `scan` returns the run's processes that live."""

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
        while self._leftovers.has_any(now_s=self._loop.time(), is_attached=True):
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
