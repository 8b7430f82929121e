"""Two optimizers for fifteen steps, then the second is not stepped any more."""

import stopwatch
import torch

first, second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (first, second)]
for number in range(30):
    second(first(torch.randn(4, 16))).mean().backward()
    for optimizer in optimizers[: 2 if number < 15 else 1]:
        optimizer.step()
    stopwatch.lap()
stopwatch.report()
