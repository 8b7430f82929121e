"""fully_shard on gloo: the classes of the modules change under us."""

import os
import tempfile

import stopwatch
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{os.path.join(folder, 'store')}", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(25):
        model(torch.randn(8, 64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stopwatch.lap()
    dist.destroy_process_group()
stopwatch.report()
