"""Batches come from a generator of the script's own."""

import stopwatch
import torch


def batches():
    for _ in range(30):
        yield torch.randn(4, 16)


model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in batches():
    model(x).mean().backward()
    optimizer.step()
    stopwatch.lap()
stopwatch.report()
