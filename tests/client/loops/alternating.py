"""One loader; even batches train one model, odd batches the other: every batch is a step."""

import stopwatch
import torch
from torch.utils.data import DataLoader, TensorDataset

models = [torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)]
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models]
for number, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(160, 8)), batch_size=4)):
    models[number % 2](x).mean().backward()
    optimizers[number % 2].step()
    stopwatch.lap()
stopwatch.report()
