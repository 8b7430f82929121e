"""Descriptors that we keep open inside somebody else's program.

They are moved out of the way of the script's own (the lowest free number is what it expects from `open`), are not
inherited over exec, and know the file they stood for: a script may close every descriptor it sees and open its own
under the same number, which must then never be read, written or closed by us.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import resource
import sys

_HIGHEST_FLOOR = 960
"""Below 1024, so that a script's `select.select` on everything it finds still works and the table stays small."""
_ROOM = 64
"""Numbers left for us below a soft limit that is not higher than 1024."""


def lowest_number() -> int:
    """The smallest descriptor number that we take for ourselves under the current soft limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _HIGHEST_FLOOR + _ROOM:
        return _HIGHEST_FLOOR
    return max(3, soft - _ROOM)


class HeldDescriptor:
    """One descriptor of ours, under a high number."""

    __slots__ = ("_identity", "fd")

    def __init__(self, fd: int) -> None:
        """Take `fd` over: it is closed under its old number.

        Raises:
            OSError: `fd` is not open. Where no high number is free, it keeps the one it has.
        """
        self._identity = _identify(fd)
        try:
            self.fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest_number())
        except OSError:
            self.fd = fd
        else:
            os.close(fd)

    def is_intact(self) -> bool:
        """Whether the number still stands for our file, and not for nothing or for one of the script's."""
        try:
            return self.fd >= 0 and _identify(self.fd) == self._identity
        except OSError:
            return False

    def is_behind(self, number: int) -> bool:
        """Whether `number` stands for the same file or pipe, at either end, also when ours has been closed."""
        try:
            return _identify(number) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Close it if it is still ours. Idempotent."""
        if self.is_intact():
            with contextlib.suppress(OSError):
                os.close(self.fd)
        self.fd = -1


def map_shared(fd: int, num_bytes: int) -> mmap.mmap:
    """Map the ring for reading and writing; -1 for anonymous memory of this process.

    Before Python 3.13 the mapping keeps a duplicate of `fd`, always under the lowest free number; so those below ours
    are taken while it does that (under 1 ms).

    Raises:
        OSError, ValueError: the file is smaller than that or cannot be mapped.
    """
    if fd < 0:
        return mmap.mmap(-1, num_bytes)
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, num_bytes, trackfd=False)
    fillers: list[int] = []
    try:
        with contextlib.suppress(OSError):
            floor = lowest_number()
            while not fillers or fillers[-1] < floor:
                fillers.append(os.dup(fd))
        if fillers:
            os.close(fillers.pop())
        return mmap.mmap(fd, num_bytes)
    finally:
        for filler in fillers:
            os.close(filler)


def _identify(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_mode >> 12
