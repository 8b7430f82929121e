"""The model is only called inside compiled functions: a whole graph, and one that is broken before the call."""

import stopwatch
import torch
from torch._dynamo.testing import CompileCounter

stopwatch.facts["graphs"] = []
for is_broken in (False, True):
    counter = CompileCounter()
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @torch.compile(backend=counter)
    def loss_of(x, model=model, is_broken=is_broken):
        x = x * 2
        if is_broken:
            torch._dynamo.graph_break()
        return model(x).mean()

    for _ in range(20):
        optimizer.zero_grad()
        loss_of(torch.randn(8, 16)).backward()
        optimizer.step()
        stopwatch.lap()
    stopwatch.facts["graphs"].append(counter.frame_count)
stopwatch.report()
