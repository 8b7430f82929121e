"""A scheduler wraps the step of the instance."""

import stopwatch
import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).mean().backward()
    optimizer.step()
    scheduler.step()
    stopwatch.lap()
stopwatch.report()
