"""Every tenth step is followed by a validation pass over its own loader, the twentieth by a checkpoint as well."""

import io

import stopwatch
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training = DataLoader(TensorDataset(torch.randn(160, 64)), batch_size=4)
held_out = DataLoader(TensorDataset(torch.randn(400, 64)), batch_size=4)
for number, (x,) in enumerate(training, 1):
    model(x).mean().backward()
    optimizer.step()
    stopwatch.lap()
    if number % 10 == 0:
        model.eval()
        for (x,) in held_out:
            with torch.no_grad():
                model(x)
        model.train()
    if number == 25:
        torch.save(model.state_dict(), io.BytesIO())
stopwatch.report()
