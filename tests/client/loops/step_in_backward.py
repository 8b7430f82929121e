"""Every parameter's optimizer steps in a hook of the backward."""

import stopwatch
import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 1))
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}


def step_now(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_now)
for _ in range(30):
    model(torch.randn(4, 16)).mean().backward()
    stopwatch.lap()
stopwatch.report()
