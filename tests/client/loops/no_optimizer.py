"""Parameters are updated by hand: there is no torch optimizer, and so there are no steps."""

import stopwatch
import torch

model = torch.nn.Linear(16, 1)
for _ in range(10):
    model(torch.randn(4, 16)).mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
            p.grad = None
stopwatch.report()
