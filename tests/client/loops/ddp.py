"""DistributedDataParallel over gloo, made after the optimizer, with accumulation under no_sync."""

import os
import tempfile

import stopwatch
import torch
import torch.distributed as dist

with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{os.path.join(folder, 'store')}", rank=0, world_size=1)
    inner = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(inner.parameters())
    model = torch.nn.parallel.DistributedDataParallel(inner)
    for _ in range(25):
        with model.no_sync():
            model(torch.randn(8, 64)).mean().backward()
        model(torch.randn(8, 64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stopwatch.lap()
    dist.destroy_process_group()
stopwatch.report()
