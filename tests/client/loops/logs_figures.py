"""Logs its figures for a tracker every tenth step, and all of them at the end."""

import stopwatch
import torch

import traceml_client

model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
logged = []
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).mean().backward()
    optimizer.step()
    stopwatch.lap()
    if step % 10 == 9:
        logged.append(traceml_client.summary(last_steps=10))
stopwatch.facts["logged"] = logged
stopwatch.facts["final"] = traceml_client.final_summary()
try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    stopwatch.facts["written"] = None
else:
    with SummaryWriter("board") as writer:
        for name, value in logged[-1].items():
            writer.add_scalar(name, value, 39)
    stopwatch.facts["written"] = len(logged[-1])
stopwatch.report()
