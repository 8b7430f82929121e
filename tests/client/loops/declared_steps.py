"""Steps are declared by the script: two optimizer steps to a block, a block inside a block, one block that fails."""

import contextlib

import stopwatch
import torch

from traceml_client import trace_step

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def half_step():
    model(torch.randn(4, 16)).mean().backward()
    optimizer.step()


for number in range(20):
    with contextlib.suppress(ValueError), trace_step():
        half_step()
        with trace_step():
            half_step()
        if number == 7:
            raise ValueError
    if number != 7:
        stopwatch.lap()
stopwatch.report()
