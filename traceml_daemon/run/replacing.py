"""How `serve` leaves the command line behind: the same process goes on as a daemon that never knew of it.

A daemon lives for weeks, and typer alone would be a quarter of its memory. The configuration holds the token, so it
goes through a memory file that only this process has.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from traceml_daemon.config import ServeConfig


def become_daemon(config: ServeConfig) -> NoReturn:
    """Replace this process by `python -m traceml_daemon serving`, with the same pid."""
    fd = os.memfd_create("traceml-serve", 0)
    os.write(fd, msgspec.json.encode(config, enc_hook=str))
    os.lseek(fd, 0, os.SEEK_SET)
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a folder with a queue.py of its own must not be where the standard library is looked for
    os.execv(sys.executable, [sys.executable, "-P", "-m", "traceml_daemon", "serving", "--config-fd", str(fd)])


def read_config(config_fd: int) -> ServeConfig:
    """The other side. Raises msgspec.DecodeError."""
    with os.fdopen(config_fd, "rb") as file:
        return msgspec.json.decode(file.read(), type=ServeConfig, dec_hook=_path)


def _path(kind: type, value: Any) -> Path:
    return Path(value)
