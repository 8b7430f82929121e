"""Imports a module that is not installed, before the process group exists."""

import no_such_tokenizer_library  # noqa: F401
from gloo_loop import options, train

if __name__ == "__main__":
    train(options().parse_args())
