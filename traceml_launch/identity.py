"""Who this launcher is: the names by which its run, its daemon and its peers know it."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

from traceml_client.protocol.manifest import LeaseHolder
from traceml_launch.system import processes


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherIdentity:
    host: str
    pid: int
    start_ticks: int
    started_ns: int
    children_before: frozenset[int]
    """Children from before we were this program (`exec`): they are not the run's."""

    @classmethod
    def of_this_process(cls) -> LauncherIdentity:
        pid = os.getpid()
        return cls(
            host=socket.gethostname(),
            pid=pid,
            start_ticks=processes.start_ticks_of(pid),
            started_ns=time.time_ns(),
            children_before=frozenset(processes.children_of(pid)),
        )

    def lease_holder(self) -> LeaseHolder:
        return LeaseHolder(host=self.host, pid=self.pid, start_ticks=self.start_ticks)
