"""A worker without torch: the client's real hand-over and recorder, then a few lines of code from the command line."""

from __future__ import annotations

import mmap
import os
import sys

from traceml_client import handover
from traceml_client.protocol import ring
from traceml_client.protocol.handover import HandoverRequest
from traceml_client.recorder import Recorder


def main() -> None:
    rank = int(os.environ["RANK"])
    request = HandoverRequest(
        pid=os.getpid(),
        start_ticks=0,
        rank=rank,
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        torch_restart_count=0,
    )
    names = {"rank": rank, "os": os, "sys": sys}
    path = os.environ.get("TRACEML_HANDOVER")
    if path:
        # Held until the end: its socket is the launcher's life line.
        names["handover"] = taken = handover.take(path, request)
        names["recorder"] = Recorder(memoryview(mmap.mmap(taken.ring.fd, ring.ring_bytes())))
    sys.stdout.reconfigure(line_buffering=True)
    exec(sys.argv[1], names)


if __name__ == "__main__":
    main()
