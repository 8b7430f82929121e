"""Standard input, output and error of a command that somebody started with one of them closed."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """After `2>&-` the next file that is opened would be standard error, and receive what is printed there.

    What is started or executed later inherits them.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))
