"""An optimizer raises in its step now and then; the loop catches it and goes on with the next batch."""

import stopwatch
import torch


class Fragile(torch.optim.SGD):
    num_calls = 0

    def step(self, closure=None):
        self.num_calls += 1
        if self.num_calls % 5 == 0:
            raise FloatingPointError("no")
        return super().step(closure)


model = torch.nn.Linear(16, 1)
optimizer = Fragile(model.parameters(), lr=0.01)
for _ in range(40):
    model(torch.randn(4, 16)).mean().backward()
    try:
        optimizer.step()
    except FloatingPointError:
        continue
    stopwatch.lap()
stopwatch.report()
