"""Warm-up with one optimizer, then another over the same parameters while the first is still there."""

import stopwatch
import torch

model = torch.nn.Linear(16, 1)
for optimizer in [torch.optim.SGD(model.parameters(), lr=0.01), torch.optim.AdamW(model.parameters())]:
    for _ in range(15):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).mean().backward()
        optimizer.step()
        stopwatch.lap()
last = torch.optim.Adagrad(model.parameters())
model(torch.randn(4, 16)).mean().backward()
last.step()
stopwatch.lap()
stopwatch.report()
