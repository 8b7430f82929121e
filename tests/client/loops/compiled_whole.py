"""The whole training step is one compiled function: gradients cleared, forward, backward and optimizer inside it."""

import stopwatch
import torch
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@torch.compile(backend=counter)
def step(x):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()


for _ in range(20):
    step(torch.randn(8, 16))
    stopwatch.lap()
stopwatch.facts["graphs"] = counter.frame_count
stopwatch.report()
