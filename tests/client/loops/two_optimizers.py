"""Two optimizers over two parts of one model, both stepped after one backward."""

import stopwatch
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
matrices = torch.optim.SGD([p for p in model.parameters() if p.ndim == 2], lr=0.01)
vectors = torch.optim.AdamW([p for p in model.parameters() if p.ndim == 1])
for _ in range(40):
    model(torch.randn(8, 64)).square().mean().backward()
    for optimizer in (matrices, vectors):
        optimizer.step()
        optimizer.zero_grad()
    stopwatch.lap()
stopwatch.report()
