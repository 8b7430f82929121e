"""A script replaces the step of its instance by a function of its own, and by a method that a scheduler then wraps."""

import types

import stopwatch
import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def plain_step(self, closure=None):
    with torch.no_grad():
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= 0.01 * parameter.grad


optimizer.step = types.MethodType(plain_step, optimizer)
for number in range(30):
    if number == 10:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    optimizer.zero_grad()
    model(torch.randn(4, 16)).mean().backward()
    optimizer.step()
    if number >= 10:
        scheduler.step()
    stopwatch.lap()
stopwatch.report()
