"""A DDP job on gloo that prints on both streams; `--end` says how rank 1 leaves, `--workers` loads by spawned ones."""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((8,), float(index))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--end", choices=["well", "exit_3", "killed"], default="well")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    end = args.end
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    how = "spawn" if args.workers else None
    loader = DataLoader(Numbers(), batch_size=4, num_workers=args.workers, multiprocessing_context=how)
    for step, batch in enumerate(loader, 1):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.3f}")
        sys.stderr.write(f"\r{rank}: {step}/8")
        if step == 5 and rank == 1 and end == "exit_3":
            sys.exit(3)
        if step == 5 and rank == 1 and end == "killed":
            print("last words", end="")
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
