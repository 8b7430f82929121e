"""The root module is a container that is never called; its part is."""

import stopwatch
import torch


class Task(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(64, 64)

    def training_step(self, x):
        return self.net(x).square().mean()


task = Task()
optimizer = torch.optim.SGD(task.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    task.training_step(torch.randn(8, 64)).backward()
    optimizer.step()
    stopwatch.lap()
stopwatch.report()
