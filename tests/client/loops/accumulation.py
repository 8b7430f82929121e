"""Four micro-batches to a step; the last batches of the epoch are too few for one more."""

import stopwatch
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(64, 1)
optimizer = torch.optim.AdamW(model.parameters())
for number, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(200, 64), torch.randn(200, 1)), batch_size=4), 1):
    torch.nn.functional.mse_loss(model(x), y).backward()
    if number % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
        stopwatch.lap()
stopwatch.report()
