"""The secret of a run on several nodes for which the user gave none: a file in the run folder, mode 0600.

Whoever shares that folder with the owner reads it there and proves it; a node that does not is let in without a proof
as long as not all nodes have given one, and the run says that it is not authenticated.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from traceml_client.protocol import launch, proof
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.folder.run_folder import RunFolder, state_of


def offer(config: LaunchConfig, folder: RunFolder | None) -> str:
    """As the owner: a new secret in our run folder; empty where that is not called for, or cannot be written."""
    if folder is None or config.token or not config.is_multi_node or config.is_disabled:
        return ""
    token = proof.new_token()
    try:
        fd = os.open(folder.run_dir / launch.TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(token)
    except OSError:
        return ""
    return token


def read(run_dir: Path) -> str:
    """Empty where there is none that we may read."""
    try:
        return (run_dir / launch.TOKEN_FILE).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def find(config: LaunchConfig) -> str:
    """Of the live run that this launch is about to join, where its folder has the name that was asked for."""
    run_dir = config.logs_dir / config.run_name
    return read(run_dir) if state_of(run_dir, now_ns=time.time_ns()) == "live" else ""


def remove(run_dir: Path) -> None:
    """The run is over: nobody needs it any more."""
    with contextlib.suppress(OSError):
        (run_dir / launch.TOKEN_FILE).unlink()
