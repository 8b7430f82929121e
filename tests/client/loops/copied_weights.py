"""The optimizer updates copies in single precision of a model's weights; no module owns them."""

import stopwatch
import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 1)).bfloat16()
copies = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.AdamW(copies)
for _ in range(30):
    model(torch.randn(4, 16).bfloat16()).float().mean().backward()
    for copy, p in zip(copies, model.parameters(), strict=True):
        copy.grad, p.grad = p.grad.float(), None
    optimizer.step()
    with torch.no_grad():
        for copy, p in zip(copies, model.parameters(), strict=True):
            p.copy_(copy)
    stopwatch.lap()
stopwatch.report()
