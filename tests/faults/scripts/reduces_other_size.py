"""Between two steps all ranks reduce a metric, and one of them brings a tensor of another size."""

import torch
import torch.distributed as dist
from gloo_loop import options, train

parser = options()
parser.add_argument("--size", type=int, default=400, help="of the odd rank; the others have 40")
args = parser.parse_args()
odd_rank, args.rank = args.rank, -1


def reduce_metric() -> None:
    dist.all_reduce(torch.zeros(args.size if dist.get_rank() == odd_rank else 40))


if __name__ == "__main__":
    train(args, reduce_metric)
