"""The backbone is unfrozen after twelve steps: a second optimizer is made and steps beside the first from then on."""

import stopwatch
import torch

backbone, head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
optimizers = [torch.optim.SGD(head.parameters(), lr=0.01)]
for number in range(36):
    if number == 12:
        optimizers.append(torch.optim.SGD(backbone.parameters(), lr=0.001))
    head(backbone(torch.randn(4, 16))).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    stopwatch.lap()
stopwatch.report()
