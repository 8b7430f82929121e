"""Who this process is: its place in the job, and the pid + start time that no other process ever has again."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace

from traceml_client.protocol.environ import RankEnvironment
from traceml_client.protocol.handover import HandoverGrant
from traceml_client.protocol.messages import NUMBER_ME

_START_TICKS_FIELD = 22


def read_start_ticks(pid: int | None = None) -> int:
    """Field 22 of /proc/PID/stat of this or another process, in clock ticks since boot.

    Raises:
        OSError: there is no such process, or no /proc.
    """
    with open(f"/proc/{pid or 'self'}/stat", "rb") as file:
        text = file.read()
    # The command name, in parentheses, may hold spaces and parentheses itself: count from the last one.
    return int(text[text.rindex(b")") + 2 :].split()[_START_TICKS_FIELD - 3])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """What the daemon is told of this process.

    `node_index` and `attempt` are NUMBER_ME under a direct launch, on every connection: the daemon knows the host and
    the process again.
    """

    run: str
    """The run id where a launcher told it, else the run name, else empty."""
    node_index: int
    local_rank: int
    attempt: int
    rank: int
    world_size: int
    local_world_size: int
    torch_restart_count: int
    host: str
    pid: int
    start_ticks: int

    def in_run(self, run: str) -> RankIdentity:
        """The same process, knowing which run the daemon put it into."""
        return replace(self, run=run)


def identify(environment: RankEnvironment, grant: HandoverGrant | None = None) -> RankIdentity:
    """This process as its launcher's grant says, or as torchrun's variables say under a direct launch.

    Raises:
        OSError: /proc cannot be read.
    """
    return RankIdentity(
        run=grant.run_id if grant else environment.run_name,
        node_index=grant.node_index if grant else NUMBER_ME,
        local_rank=environment.local_rank,
        attempt=grant.attempt if grant else NUMBER_ME,
        rank=environment.rank,
        world_size=environment.world_size,
        local_world_size=environment.local_world_size,
        torch_restart_count=environment.torch_restart_count,
        host=socket.gethostname(),
        pid=os.getpid(),
        start_ticks=read_start_ticks(),
    )
