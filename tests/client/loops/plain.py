"""The usual loop: a DataLoader, one model, one optimizer."""

import stopwatch
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(160, 64), torch.randn(160, 1))
for _ in range(3):
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        stopwatch.lap()
stopwatch.report()
