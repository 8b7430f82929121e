"""A rank runs out of data, leaves the loop and exits with 0; its peers stand in a collective that it will not join."""

from gloo_loop import options, train

if __name__ == "__main__":
    train(options().parse_args(), lambda: True)
