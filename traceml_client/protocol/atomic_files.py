"""Replaces whole files, and removes what a writer that was killed meanwhile has left of one."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Final

from traceml_client.protocol.process_identity import start_ticks

_LEFTOVER: Final = re.compile(r"\..+\.(\d+)-(\d+)\.\w{8}")
"""A temporary file names the process that writes it, by pid and start."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, mode 0600: a reader sees the old file or the new one, also if we are killed here.

    Raises:
        OSError: as the file system says; the old file is untouched and no temporary one is left.
    """
    writer = f"{os.getpid()}-{start_ticks(os.getpid())}"
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.{writer}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def remove_leftovers(*folders: Path) -> None:
    """Remove the temporary files of writers that are gone; for who holds these folders, since a host sees only its own.

    Never raises: they are in nobody's way.
    """
    for folder in folders:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                found = _LEFTOVER.fullmatch(name)
                if found is not None and start_ticks(int(found[1])) != int(found[2]):
                    with contextlib.suppress(OSError):
                        os.unlink(folder / name)
