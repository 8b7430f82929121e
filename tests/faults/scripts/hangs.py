"""A rank waits for an event that nobody sets; its peers wait for it in a collective. Somebody has to end the job."""

import threading

from gloo_loop import options, train


def wait_for_ever() -> None:
    threading.Event().wait()


if __name__ == "__main__":
    train(options(timeout=600.0).parse_args(), wait_for_ever)
