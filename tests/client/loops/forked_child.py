"""The rank trains, forks a child that trains too, and goes on."""

import os

import stopwatch
import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(num_steps):
    for _ in range(num_steps):
        model(torch.randn(4, 16)).mean().backward()
        optimizer.step()
        stopwatch.lap()


train(10)
if (child := os.fork()) == 0:
    train(25)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
train(10)
stopwatch.report()
