"""A compiled model, a model that compiles itself, a compiled optimizer step, and how often the compiler had to stop."""

import stopwatch
import torch
from torch._dynamo.testing import CompileCounter


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)


stopwatch.facts["graphs"] = []
for kind in ("model", "itself", "step"):
    counter = CompileCounter()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    called, step = model, optimizer.step
    if kind == "model":
        called = torch.compile(model, backend=counter)
    elif kind == "itself":
        model.compile(backend=counter)
    else:
        step = torch.compile(optimizer.step, backend=counter)
    for _ in range(10):
        optimizer.zero_grad()
        called(torch.randn(8, 16)).mean().backward()
        step()
        stopwatch.lap()
    stopwatch.facts["graphs"].append(counter.frame_count)
stopwatch.report()
