"""torchrun's direct children: its workers, also those that never took anything from us (`--disable-traceml`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from traceml_launch.system import pidfds, processes

LOOK_S: Final = 1.0
"""Workers live for longer than this; one that does not needs no ending."""


class WorkerTracker:
    """Looks once a second while torchrun lives, so that orphans of a killed torchrun are known as workers."""

    def __init__(self, torchrun_pid: int, *, is_known: Callable[[int], bool]) -> None:
        """`is_known`: somebody else waits for that child of ours."""
        self._torchrun_pid = torchrun_pid
        self._is_known = is_known
        self._pidfds: dict[int, int] = {}
        self.sessions: set[int] = set()
        """Each worker leads a session of its pid; what it detaches has another one."""
        self._task = asyncio.get_running_loop().create_task(self._keep_looking())

    def look(self) -> None:
        for pid in processes.children_of(self._torchrun_pid):
            if pid not in self._pidfds and (pidfd := pidfds.open_pidfd(pid)) is not None:
                self._pidfds[pid] = pidfd
                self.sessions.add(pid)
        for pid, pidfd in list(self._pidfds.items()):
            if pidfds.is_gone(pidfd):
                os.close(pidfd)
                del self._pidfds[pid]

    def living(self) -> dict[int, int]:
        """pid -> pidfd, as of the last look."""
        return dict(self._pidfds)

    async def close(self) -> None:
        """Legal twice."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()

    async def _keep_looking(self) -> None:
        while True:
            self.look()
            processes.reap_adopted(self._is_known)
            await asyncio.sleep(LOOK_S)
