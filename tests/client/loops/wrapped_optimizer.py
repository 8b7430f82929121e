"""Optimizers that wrap optimizers: one that is no torch optimizer inside, and one that only looks like one."""

import stopwatch
import torch


class Lookahead(torch.optim.Optimizer):
    """A torch optimizer with another inside, whose step it calls."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step(closure)


class Facade(torch.optim.Optimizer):
    """Never initialized as one: a library's wrapper."""

    def __init__(self, inner):
        self.inner = inner

    @property
    def param_groups(self):
        return self.inner.param_groups

    def step(self, closure=None):
        return self.inner.step(closure)


model = torch.nn.Linear(16, 1)
for wrap in (Lookahead, Facade):
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = wrap(inner)
    for _ in range(15):
        inner.zero_grad()
        model(torch.randn(4, 16)).mean().backward()
        optimizer.step()
        stopwatch.lap()
stopwatch.report()
