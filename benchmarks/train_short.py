"""A short healthy two-rank job. `train_short.py STAMP [--peer]`: rank 0 writes the end of its last step to STAMP."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NUM_STEPS = 200


def main() -> None:
    trace_step = contextlib.nullcontext
    if "--peer" in sys.argv:
        import traceml_ai

        traceml_ai.init(mode="auto")
        trace_step = traceml_ai.trace_step
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        with trace_step(model):
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
        time.sleep(0.005)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(str(time.time_ns()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
