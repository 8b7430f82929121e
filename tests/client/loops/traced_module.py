"""A module that `torch.jit.trace` made."""

import warnings

import stopwatch
import torch

warnings.simplefilter("ignore", DeprecationWarning)
model = torch.jit.trace(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 1)), torch.randn(4, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).mean().backward()
    optimizer.step()
    stopwatch.lap()
stopwatch.report()
