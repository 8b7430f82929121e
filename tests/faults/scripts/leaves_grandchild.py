"""A rank starts a helper in a session of its own, which holds the rank's streams open, and then raises."""

import subprocess

from gloo_loop import options, train


def start_helper_and_raise() -> None:
    subprocess.Popen(["sleep", "40"], start_new_session=True)
    raise ConnectionError("the feature store closed the connection")


if __name__ == "__main__":
    train(options().parse_args(), start_helper_and_raise)
