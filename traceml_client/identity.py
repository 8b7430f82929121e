"""Who this process is: its place in the job, and the pid + start time that no other process ever has again."""

from __future__ import annotations

import os
import socket
import time

from traceml_client.protocol.environ import RankEnvironment
from traceml_client.protocol.handover import HandoverGrant
from traceml_client.protocol.messages import NUMBER_ME, PROTOCOL_MAJOR, RankHello

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


def identify(environment: RankEnvironment, grant: HandoverGrant | None = None) -> RankHello:
    """This process as its launcher's grant says, or as torchrun's variables say under a direct launch; without a proof.

    `node_index` and `attempt` are NUMBER_ME under a direct launch, on every connection: the daemon knows the host and
    the process again.

    Raises:
        OSError: /proc cannot be read.
    """
    return RankHello(
        version=PROTOCOL_MAJOR,
        run=grant.run_id if grant else environment.run_name,
        proof=b"",
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
        wall_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
    )
