"""A process in the middle of replacing a file: alive, or killed there."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_WRITER = """
import os, sys
from pathlib import Path
from traceml_client.protocol.atomic_files import write_atomically

def wait(fd):
    print("written", flush=True)
    sys.stdin.read()

os.fsync = wait
write_atomically(Path(sys.argv[1]), b"new")
"""


@contextlib.contextmanager
def half_written(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Within the block its writer has written and not yet replaced; it goes on when its standard input is closed."""
    argv = [sys.executable, "-c", _WRITER, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        yield writer


def leave_half_written(path: Path) -> None:
    """What a writer leaves that is killed there."""
    with half_written(path) as writer:
        writer.kill()
    assert hidden_files(path.parent)


def hidden_files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.name.startswith("."))
