"""For plain python or torchrun: `traceml_client.init()` and an ordinary loop."""

import os
import sys

import torch

import traceml_client

traceml_client.init()
if "--group" in sys.argv:
    torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(25):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print("trained", "token" if "TRACEML_TOKEN" in os.environ else "no token", flush=True)
