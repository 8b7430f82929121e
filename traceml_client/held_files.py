"""Files of /proc and of cgroups that are opened before the script runs and read again and again.

A descriptor that appeared for an instant, under the lowest free number, would be one that the script's own thread is
about to get, or to close.
"""

from __future__ import annotations

import errno
import os

from traceml_client.descriptors import HeldDescriptor

_PART_BYTES = 16 * 1024
MAX_BYTES = 256 * 1024


class HeldFile:
    """One such file. Raises OSError where it cannot be opened."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: str) -> None:
        self._descriptor = HeldDescriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def head(self) -> bytes | None:
        """Its first lines, at most 16 KB; null once the script has closed our descriptor, which it may do at any time.

        Raises:
            OSError: the system refuses.
        """
        return self._read(0)

    def text(self) -> bytes | None:
        """All of it: the kernel gives the longer ones in parts. Null and OSError as above."""
        whole = b""
        while part := self._read(len(whole)):
            whole += part
            if len(whole) >= MAX_BYTES:
                break
        return whole or None

    def number(self) -> int | None:
        """Its first number; null for `max`, for anything else that is none, and as above."""
        words = (self.head() or b"").split(None, 1)
        return int(words[0]) if words and words[0].isdigit() else None

    def fields(self, names: tuple[bytes, ...]) -> dict[bytes, int] | None:
        """The numbers of its `Name: 123 kB` or `name 123` lines as they stand. Null as above."""
        text = self.head()
        if text is None:
            return None
        found = {}
        for line in text.split(b"\n"):
            name, *rest = line.replace(b":", b" ", 1).split(None, 2)[:2] or [b""]
            if rest and name in names:
                found[name] = int(rest[0])
        return found

    def close(self) -> None:
        self._descriptor.close()

    def _read(self, offset: int) -> bytes | None:
        try:
            return os.pread(self._descriptor.fd, _PART_BYTES, offset) if self._descriptor.is_intact() else None
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return None
