"""Mixed precision: every third step overflows and is skipped; with a fused optimizer the kernel skips it."""

import stopwatch
import torch

stopwatch.facts["skipped"] = 0
for is_fused in (False, True):
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for number in range(15):
        optimizer.zero_grad()
        factor = float("inf") if number % 3 == 0 else 1.0
        scaler.scale(model(torch.randn(4, 16)).mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        stopwatch.facts["skipped"] += number % 3 == 0
        stopwatch.lap()
stopwatch.report()
