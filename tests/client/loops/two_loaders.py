"""Two optimizers, each fed by a loader of its own within one iteration."""

import stopwatch
import torch
from torch.utils.data import DataLoader, TensorDataset

first, second = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (first, second)]
loaders = [iter(DataLoader(TensorDataset(torch.randn(120, 8)), batch_size=4)) for _ in range(2)]
for _ in range(30):
    for model, optimizer, loader in zip((first, second), optimizers, loaders, strict=True):
        (x,) = next(loader)
        model(x).mean().backward()
        optimizer.step()
    stopwatch.lap()
stopwatch.report()
