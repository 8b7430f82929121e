"""A rank raises and then spends three seconds in its exit handler, while its peers wait for it in a collective."""

import atexit
import time

from gloo_loop import options, train


def bad_sample() -> None:
    atexit.register(time.sleep, 3.0)
    raise RuntimeError("the tokenizer returned an empty sequence")


if __name__ == "__main__":
    train(options().parse_args(), bad_sample)
