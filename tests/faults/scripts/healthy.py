"""Nothing goes wrong."""

from gloo_loop import options, train

if __name__ == "__main__":
    train(options().parse_args())
