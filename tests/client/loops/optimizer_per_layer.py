"""One optimizer for each of thirty layers, stepped one after the other."""

import stopwatch
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(30)))
optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in model]
for _ in range(20):
    model(torch.randn(8, 16)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    stopwatch.lap()
stopwatch.report()
