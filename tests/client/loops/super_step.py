"""A subclass whose step calls super().step(), twice removed."""

import stopwatch
import torch


class Clipping(torch.optim.SGD):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], 1.0)
        return super().step(closure)


class Counting(Clipping):
    num_steps = 0

    def step(self, closure=None):
        self.num_steps += 1
        return super().step(closure)


model = torch.nn.Linear(16, 1)
optimizer = Counting(model.parameters(), lr=0.01)
for _ in range(30):
    model(torch.randn(4, 16)).mean().backward()
    optimizer.step()
    stopwatch.lap()
assert optimizer.num_steps == 30
stopwatch.report()
