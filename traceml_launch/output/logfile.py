"""A stream's file: every byte in order, or, under a cap, the head and the tail with one line between them.

A failing disk never reaches the caller: what could not be written is counted, and the first reason is kept.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, Final

COPY_BYTES: Final = 1 << 20


class WholeLog:
    """Appends everything to one file, mode 0600."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lost_bytes = 0
        self.error: str | None = None
        """Why bytes were lost, the first time."""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.error = error.strerror

    def write(self, data: bytes) -> None:
        """Never raises; after an error the next call tries again, for a disk may have been freed."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self.num_lost_bytes += len(view)
            self.error = self.error or error.strerror

    def close(self) -> None:
        """Legal twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class CappedLog(WholeLog):
    """Keeps `max_bytes`: the head in the file itself, the tail in two files beside it that take turns.

    `close` joins them. A launcher that is killed before that leaves the parts, `NAME.tail-0` and `NAME.tail-1`.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        super().__init__(path)
        self._max_bytes = max_bytes
        self._head_left = max_bytes // 2
        self._part_bytes = max_bytes - max_bytes // 2
        self._parts: list[tuple[WholeLog, int]] = []
        """The newer one last, with the bytes given to it: at most `_part_bytes` each, and together at least that."""
        self._num_turns = 0
        self._num_cut_bytes = 0

    def write(self, data: bytes) -> None:
        if self._head_left:
            super().write(data[: self._head_left])
            data, self._head_left = data[self._head_left :], max(0, self._head_left - len(data))
        while data:
            if not self._parts or self._parts[-1][1] >= self._part_bytes:
                self._turn()
            part, used = self._parts[-1]
            piece = data[: self._part_bytes - used]
            part.write(piece)
            self._parts[-1] = (part, used + len(piece))
            data = data[len(piece) :]

    def close(self) -> None:
        total = sum(used for _, used in self._parts)
        skip = max(0, total - self._part_bytes)
        num_cut = self._num_cut_bytes + skip
        if num_cut:
            line = f"\n[TraceML] {num_cut} bytes were cut here (--max-log-bytes {self._max_bytes})\n"
            super().write(line.encode())
        for part, used in self._parts:
            self._append(part.path, min(skip, used))
            skip -= min(skip, used)
            self._drop(part)
        self._parts = []
        super().close()

    def _turn(self) -> None:
        """Begin a new part in place of the older one."""
        if len(self._parts) == 2:
            part, used = self._parts.pop(0)
            self._num_cut_bytes += used
            self._drop(part)
        path = self.path.with_name(f"{self.path.name}.tail-{self._num_turns % 2}")
        self._num_turns += 1
        self._parts.append((WholeLog(path), 0))

    def _drop(self, part: WholeLog) -> None:
        self.num_lost_bytes += part.num_lost_bytes
        self.error = self.error or part.error
        part.close()
        with contextlib.suppress(OSError):
            part.path.unlink()

    def _append(self, path: Path, skip: int) -> None:
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(skip)
            while piece := file.read(COPY_BYTES):
                super().write(piece)


def open_private(path: Path) -> BinaryIO:
    """Open a file for appending, mode 0600 if it is new. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")


def open_log(path: Path, *, max_bytes: int) -> WholeLog:
    """A log without a cap where `max_bytes` is 0."""
    return CappedLog(path, max_bytes=max_bytes) if max_bytes else WholeLog(path)


def read_tail(path: Path, max_bytes: int) -> bytes:
    """The last bytes of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - max_bytes))
            return file.read(max_bytes)
    except OSError:
        return b""
