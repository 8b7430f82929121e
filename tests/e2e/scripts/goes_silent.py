"""DDP on gloo; rank 1 stops itself (SIGSTOP) after a few steps: its connections stay, and nothing comes any more."""

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1000):
    if step == 10:
        print("step 10", flush=True)
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
