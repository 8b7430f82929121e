"""Two optimizers a step; the rank kills itself right after step 12, or between the two of step 13."""

import os
import signal
import sys

import torch

first, second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (first, second)]
for number in range(1, 20):
    second(first(torch.randn(4, 16))).mean().backward()
    optimizers[0].step()
    if number == 13 and sys.argv[1] == "inside":
        os.kill(os.getpid(), signal.SIGKILL)
    optimizers[1].step()
    if number == int(sys.argv[1].removeprefix("after-").replace("inside", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
