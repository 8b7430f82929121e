"""A rank (or all of them) meets a bad sample and raises; with --first-attempt-only a restart gets past it."""

import os

from gloo_loop import options, train

parser = options()
parser.add_argument("--first-attempt-only", action="store_true")
args = parser.parse_args()


def bad_sample() -> None:
    if not (args.first_attempt_only and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"):
        raise ValueError(f"sample {args.step} has no label")


if __name__ == "__main__":
    train(args, bad_sample)
