"""A second optimizer steps before the main one in every third iteration, the very first among them."""

import stopwatch
import torch

slow, fast = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
slow_optimizer = torch.optim.SGD(slow.parameters(), lr=0.01)
fast_optimizer = torch.optim.SGD(fast.parameters(), lr=0.01)
for number in range(31):
    fast(slow(torch.randn(4, 8))).mean().backward()
    if number % 3 == 0:
        slow_optimizer.step()
    fast_optimizer.step()
    stopwatch.lap()
stopwatch.report()
