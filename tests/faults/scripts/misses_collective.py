"""A rank is busy elsewhere for longer than the collective's time-out of its peers."""

import time

from gloo_loop import options, train


def evaluate_alone() -> None:
    time.sleep(60.0)


if __name__ == "__main__":
    train(options().parse_args(), evaluate_alone)
