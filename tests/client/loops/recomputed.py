"""The whole model is run again in the backward, to save memory: that is part of the backward."""

import time

import stopwatch
import torch
from torch.utils.checkpoint import checkpoint


class Slow(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.002)
        return super().forward(x)


model = Slow(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    optimizer.zero_grad()
    checkpoint(model, torch.randn(4, 16), use_reentrant=False).mean().backward()
    optimizer.step()
    stopwatch.lap()
stopwatch.report()
