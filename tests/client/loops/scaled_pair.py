"""Two optimizers behind one gradient scaler; now and then the second one's gradients overflow, or both."""

import stopwatch
import torch

first, second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (first, second)]
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for number in range(30):
    hidden = first(torch.randn(4, 16))
    factor = float("inf") if number % 7 == 3 else 1.0
    scaler.scale(second(hidden).mean() * factor).backward()
    if number % 5 == 2:
        second.weight.grad.fill_(float("inf"))
    for optimizer in optimizers:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
    stopwatch.lap()
stopwatch.report()
