"""A siamese loss: three forwards and two backwards a step, with a hidden child that is called by itself."""

import stopwatch
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    optimizer.zero_grad()
    anchor, positive, negative = (model(torch.randn(8, 64)) for _ in range(3))
    (anchor - positive).square().mean().backward(retain_graph=True)
    (anchor - negative).square().mean().neg().backward()
    optimizer.step()
    stopwatch.lap()
stopwatch.report()
