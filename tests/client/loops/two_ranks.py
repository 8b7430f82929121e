"""DistributedDataParallel over gloo with a second rank in a forked child; one of them has a slow backward."""

import os
import sys
import tempfile
import time

import stopwatch
import torch
import torch.distributed as dist

slow_rank = int(sys.argv[1]) if len(sys.argv) > 1 else 1


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        if dist.get_rank() == slow_rank:
            time.sleep(0.02)
        return grad


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)])

    def forward(self, x):
        return self.layers[1](SlowBackward.apply(self.layers[0](x)))


with tempfile.TemporaryDirectory() as folder:
    child = os.fork()
    store = f"file://{os.path.join(folder, 'store')}"
    dist.init_process_group("gloo", init_method=store, rank=0 if child else 1, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        model(torch.randn(8, 16)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if child:
            stopwatch.lap()
    dist.destroy_process_group()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
stopwatch.report()
