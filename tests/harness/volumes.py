"""Real volumes that are small, fill up or go away; for who may mount (root), else the test is skipped."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Volume:
    path: Path

    def fill(self) -> None:
        """Take every byte that is left."""
        with contextlib.suppress(OSError), (self.path / "somebody else's").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_read_only(self) -> None:
        """Refused by the kernel while somebody has a file open for writing."""
        _run("mount", "-o", "remount,ro", str(self.path))

    def take_away(self) -> None:
        """Open files stay what they are; no path leads there any more."""
        _run("umount", "--lazy", str(self.path))


@contextlib.contextmanager
def small_volume(path: Path, *, size_kib: int) -> Iterator[Volume]:
    """A file system in memory with its root at `path`, until the block is left."""
    path.mkdir(mode=0o700)
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size_kib}k,mode=0700", "tmpfs", str(path))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nobody but root may mount a volume, and not everywhere")
    try:
        yield Volume(path)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
