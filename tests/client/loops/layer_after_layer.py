"""Layers are trained one after the other, each by an optimizer that is made when its turn comes and then dropped."""

import stopwatch
import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 1))
for layer in model:
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(10):
        model(torch.randn(4, 16)).mean().backward()
        optimizer.step()
        stopwatch.lap()
stopwatch.report()
