"""The files that a daemon writes into a run's folder, one after the other, on a thread of their own.

A slow disk then holds up neither the loop nor the order of the manifests. What fails is told once and never raised: a
file that cannot be written must not end the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, Final

from traceml_client.protocol.atomic_files import write_atomically
from traceml_client.protocol.launch import layout_node_dir
from traceml_client.protocol.manifest import encode_json
from traceml_daemon.storage.reserve import Reserve

MAX_NODE_BYTES: Final = 64 << 20
"""All files that one node may send: 64 KiB of tail from each of a thousand ranks."""
_MAX_DEPTH: Final = 8
_MAX_NAME: Final = 128

_log = logging.getLogger("traceml_daemon")


class RunFiles:
    """Writes below one run folder. Belongs to one event loop."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.failures: list[str] = []
        self.reserve = Reserve(run_dir)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="run files")
        self._last: asyncio.Future[None] | None = None
        self._is_closed = False

    def submit(self, write: Callable[..., None], *args: Any) -> None:
        """Call `write(*args)` after everything that was submitted before."""
        self._last = asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, write, args)

    def write_json(self, name: str, document: Any) -> None:
        """Replace the file `name` (relative to the run folder) atomically."""
        self.submit(write_json, self.run_dir / name, document)

    def keep_tail(self, node_index: int, path: str, data: bytes) -> bool:
        """Keep a file that a node sent, unless one is there. False: that path is not that node's to write."""
        target = _target(self.run_dir, node_index, path)
        if target is None:
            return False
        self.submit(_write_if_absent, self.run_dir, target, data)
        return True

    async def flush(self) -> None:
        """Return once everything that was submitted is written or has failed."""
        while self._last is not None and not self._last.done():
            await self._last

    async def close(self) -> None:
        """Flush and end the thread. Legal twice."""
        if not self._is_closed:
            self._is_closed = True
            self.submit(self.reserve.release)
            await self.flush()
            self._thread.shutdown(wait=False)

    def _guarded(self, write: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            write(*args)
        except OSError as error:
            if len(self.failures) < 10:
                self.failures.append(f"could not write {error.filename or self.run_dir}: {error.strerror}")
                _log.error("%s", self.failures[-1])


def write_json(path: Path, document: Any) -> None:
    """Replace one file atomically, its folder made if need be. Blocks. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, encode_json(document))


def _target(run_dir: Path, node_index: int, path: str) -> Path | None:
    """Where a sent file belongs; null where the path leads anywhere but below that node's own folder."""
    parts = PurePosixPath(path).parts
    own = PurePosixPath(layout_node_dir(node_index)).parts
    is_own = parts[: len(own)] == own and len(own) < len(parts) <= _MAX_DEPTH
    is_plain = all(part not in ("..", ".") and part.isprintable() and len(part) <= _MAX_NAME for part in parts)
    return run_dir.joinpath(*parts) if is_own and is_plain and "\\" not in path else None


def _write_if_absent(run_dir: Path, target: Path, data: bytes) -> None:
    """Create the file, mode 0600, through real folders only: a link on the way would lead out of the run."""
    folder = run_dir
    for part in target.relative_to(run_dir).parts[:-1]:
        folder = folder / part
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if folder.is_symlink():
            raise OSError(40, "a link stands in the way", str(folder))
    with contextlib.suppress(FileExistsError):
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
