"""The critic steps every iteration, the generator after it in every fifth."""

import stopwatch
import torch

generator, critic = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
g_optimizer = torch.optim.RMSprop(generator.parameters())
c_optimizer = torch.optim.RMSprop(critic.parameters())
for number in range(42):
    critic(generator(torch.randn(4, 8)).detach()).mean().backward()
    c_optimizer.step()
    if number % 5 == 0:
        critic(generator(torch.randn(4, 8))).mean().neg().backward()
        g_optimizer.step()
    stopwatch.lap()
stopwatch.report()
