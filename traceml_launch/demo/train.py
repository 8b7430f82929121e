"""A small training job for `traceml demo`: two ranks, DDP on gloo, a data loader. It does not know of TraceML."""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

NUM_STEPS = 150
FAULT_STEP = 100
FAULT_RANK = 1
BATCH_SIZE = 32


class Spirals(Dataset):
    """Points on two spirals; the network learns which one a point is on."""

    def __init__(self) -> None:
        num_points = 2 * BATCH_SIZE * NUM_STEPS
        self.labels = torch.arange(num_points) % 2
        radius = torch.rand(num_points) * 3
        angle = radius * 2 + self.labels * torch.pi
        self.points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index], self.labels[index]


def fail(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("the loss of the demo is not a number (this is the fault that you asked for)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "crash", "kill"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dataset = Spirals()
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=DistributedSampler(dataset))
    for step, (points, labels) in enumerate(loader, start=1):
        loss = nn.functional.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        if fault != "none" and rank == FAULT_RANK and step == FAULT_STEP:
            fail(fault)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step:3d} of {NUM_STEPS}  loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
