"""Discriminator, then generator, each with its own backward; the discriminator's fakes are made without gradients."""

import stopwatch
import torch

generator, discriminator = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
g_optimizer = torch.optim.Adam(generator.parameters())
d_optimizer = torch.optim.Adam(discriminator.parameters())
for _ in range(40):
    with torch.no_grad():
        fake = generator(torch.randn(4, 8))
    d_optimizer.zero_grad()
    (discriminator(fake).mean() - discriminator(torch.randn(4, 16)).mean()).backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    discriminator(generator(torch.randn(4, 8))).mean().neg().backward()
    g_optimizer.step()
    stopwatch.lap()
stopwatch.report()
