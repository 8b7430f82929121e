"""Who this process is: its place in the job, and the pid + start time that no other process ever has again."""

from __future__ import annotations

import os
import socket
import time

from traceml_client.protocol.environ import RankEnvironment
from traceml_client.protocol.handover import HandoverGrant
from traceml_client.protocol.messages import NUMBER_ME, PROTOCOL_MAJOR, RankHello
from traceml_client.protocol.process_identity import start_ticks


def identify(environment: RankEnvironment, grant: HandoverGrant | None = None) -> RankHello:
    """This process as its launcher's grant says, or as torchrun's variables say under a direct launch; without a proof.

    `node_index` and `attempt` are NUMBER_ME under a direct launch, on every connection: the daemon knows the host and
    the process again.
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
        start_ticks=start_ticks(os.getpid()),
        wall_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
    )
