"""A DDP job whose phases take extra time as its options say: on all ranks, or on one of them."""

from __future__ import annotations

import argparse
import json
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--rank", type=int, default=-1, help="the rank that the extra time is for; -1 is all")
parser.add_argument("--input-ms", type=float, default=0.0)
parser.add_argument("--forward-ms", type=float, default=0.0)
parser.add_argument("--backward-ms", type=float, default=0.0)
parser.add_argument("--optimizer-ms", type=float, default=0.0)
parser.add_argument("--residual-ms", type=float, default=0.0)
parser.add_argument("--growth-ms", type=float, default=0.0, help="more of it with every step, in the forward")
parser.add_argument("--leak-mib", type=int, default=0)
parser.add_argument("--stall-ms", type=float, default=0.0)
parser.add_argument("--stall-every", type=int, default=10)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--laps", default="", help="where rank 0 writes when its steps ended, by its own clock")
args = parser.parse_args()

RANK = 0


def sleep(milliseconds: float) -> None:
    if milliseconds > 0 and args.rank in (-1, RANK):
        time.sleep(milliseconds / 1000)


class Samples(Dataset):
    def __len__(self) -> int:
        return 8 * args.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        sleep(args.input_ms / 8)
        return torch.randn(32)


class Paced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        sleep(args.backward_ms)
        return gradient


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, args.width), torch.nn.Linear(args.width, 1)
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        sleep(args.forward_ms + self.num_calls * args.growth_ms)
        return self.second(Paced.apply(self.first(x).relu()))


class PacedSGD(torch.optim.SGD):
    def step(self, closure: object = None) -> None:
        sleep(args.optimizer_ms)
        super().step(closure)


def main() -> None:
    global RANK
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    RANK = dist.get_rank()
    model = DistributedDataParallel(Net())
    optimizer = PacedSGD(model.parameters(), lr=0.01)
    kept, laps = [], []
    for step, x in enumerate(DataLoader(Samples(), batch_size=8, num_workers=args.workers)):
        sleep(args.residual_ms)
        if args.stall_ms and step % args.stall_every == args.stall_every - 1:
            sleep(args.stall_ms)
        if args.leak_mib and args.rank in (-1, RANK):
            kept.append(torch.ones(args.leak_mib << 18))
        model(x).square().mean().backward()
        optimizer.step()
        laps.append(time.monotonic_ns())
        optimizer.zero_grad()
    if args.laps and RANK == 0:
        with open(args.laps, "w") as file:
            json.dump(laps, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
