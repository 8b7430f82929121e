"""A wrapper that was never initialized as an optimizer asks a gradient scaler about the one inside."""

import stopwatch
import torch


class Scaled(torch.optim.Optimizer):
    def __init__(self, inner, scaler):
        self.inner = inner
        self.scaler = scaler

    @property
    def param_groups(self):
        return self.inner.param_groups

    def step(self, closure=None):
        self.scaler.step(self.inner)
        self.scaler.update()


model = torch.nn.Linear(16, 1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
optimizer = Scaled(torch.optim.SGD(model.parameters(), lr=0.01), scaler)
for number in range(30):
    optimizer.inner.zero_grad()
    loss = model(torch.randn(4, 16)).mean()
    scaler.scale(loss * float("inf") if number % 3 == 0 else loss).backward()
    optimizer.step()
    stopwatch.lap()
stopwatch.report()
