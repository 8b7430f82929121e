"""The older FullyShardedDataParallel on gloo, with flat parameters."""

import os
import tempfile
import warnings

import stopwatch
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{os.path.join(folder, 'store')}", rank=0, world_size=1)
    inner = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(25):
        model(torch.randn(8, 64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stopwatch.lap()
    dist.destroy_process_group()
stopwatch.report()
