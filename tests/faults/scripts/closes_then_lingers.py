"""A rank raises, and its `finally` destroys the process group and takes its time: the peers lose it and are seen first.

Without DDP, whose connections would stay open until the process ends. What was raised is never printed.
"""

import time

import torch
import torch.distributed as dist
from gloo_loop import options

parser = options()
parser.add_argument("--linger", type=float, default=8.0, help="seconds")
args = parser.parse_args()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    try:
        for step in range(args.steps):
            if rank == args.rank and step == args.step:
                raise ValueError(f"sample {step} has no label")
            dist.all_reduce(torch.ones(10))
    finally:
        dist.destroy_process_group()
        if rank == args.rank:
            time.sleep(args.linger)


if __name__ == "__main__":
    main()
