"""Gradients by torch.autograd.backward, by torch.autograd.grad, and through a forward that computes some itself."""

import stopwatch
import torch


class Force(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = torch.nn.Linear(16, 1)

    def forward(self, x):
        x = x.requires_grad_()
        return torch.autograd.grad(self.energy(x).square().sum(), x, create_graph=True)[0]


model = Force()
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.01)
for number in range(30):
    loss = model(torch.randn(8, 16)).square().mean()
    if number % 2:
        optimizer.zero_grad()
        torch.autograd.backward(loss)
    else:
        for p, grad in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            p.grad = grad
    optimizer.step()
    stopwatch.lap()
stopwatch.report()
