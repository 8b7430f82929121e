"""No loader; the generator alone, then the discriminator alone, then both in each iteration; then a third model."""

import stopwatch
import torch

models = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]
optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models]


def train(*turns):
    for turn in turns:
        models[turn](torch.randn(4, 8)).mean().backward()
        optimizers[turn].step()
    stopwatch.lap()


for turns in ([0], [1], [1, 0], [2]):
    for _ in range(8):
        train(*turns)
stopwatch.report()
