"""The model is out of the garbage collector's sight when training begins."""

import gc

import stopwatch
import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
gc.freeze()
for _ in range(40):
    model(torch.randn(4, 16)).mean().backward()
    optimizer.step()
    stopwatch.lap()
stopwatch.report()
