"""Files of a worker that others write: torchrun's own stream files are linked into its folder, its error is copied."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from traceml_launch.ranks.workers import Worker

ERROR_FILE: Final = "error.json"
MAX_ERROR_BYTES: Final = 1 << 20
_STREAM_FDS: Final = {1: "stdout.log", 2: "stderr.log"}


def link_streams(worker: Worker) -> None:
    """Where torchrun redirected this worker into files, link them into the worker's folder."""
    for fd, name in _STREAM_FDS.items():
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{worker.pid}/fd/{fd}")
            if os.path.isfile(target):
                os.symlink(target, worker.rank_dir / name)


def keep_error(worker: Worker) -> None:
    """Copy what torchelastic's error file holds after the death, unless the worker has left one itself."""
    target = worker.rank_dir / ERROR_FILE
    if worker.error_file is None or target.exists():
        return
    with contextlib.suppress(OSError), open(worker.error_file, "rb") as file:
        content = file.read(MAX_ERROR_BYTES)
        if content:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as copy:
                copy.write(content)
