"""Cannot be compiled: the bracket is never closed."""

from gloo_loop import options, train

train(options().parse_args(
