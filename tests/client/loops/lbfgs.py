"""LBFGS calls forward and backward many times inside one step."""

import stopwatch
import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
x, y = torch.randn(32, 16), torch.randn(32, 1)


def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(12):
    optimizer.step(closure)
    stopwatch.lap()
stopwatch.report()
