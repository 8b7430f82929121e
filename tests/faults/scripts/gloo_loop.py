"""The loop that every script here trains with: a small model under DDP, gloo on the CPU. Knows nothing of traceml."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def options(**defaults: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=1, help="who misbehaves; -1: everybody")
    parser.add_argument("--step", type=int, default=12, help="steps that are complete before it does")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="makes the job long enough for a signal")
    parser.add_argument("--timeout", type=float, default=60.0, help="gloo's, in seconds")
    parser.set_defaults(**defaults)
    return parser


def join_group(timeout: timedelta) -> int:
    """The rank. An attempt must not read the addresses of the one before: torchrun keeps one store for all of them."""
    store, rank, world_size = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    return rank


def train(args: argparse.Namespace, misbehave: Callable[[], bool | None] | None = None) -> None:
    """Train; the chosen rank calls `misbehave` instead of step `--step` + 1, and leaves the loop if it returns True."""
    rank = join_group(timedelta(seconds=args.timeout))
    torch.manual_seed(7)
    features, targets = torch.randn(24, 12), torch.randn(24, 2)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(12, 48), torch.nn.Tanh(), torch.nn.Linear(48, 2))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        if misbehave is not None and step == args.step and args.rank in (rank, -1) and misbehave():
            break
        if args.step_seconds:
            time.sleep(args.step_seconds)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), targets)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} of {args.steps}: loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()
