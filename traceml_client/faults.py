"""Counts what goes wrong inside the client, and says each kind of it once, on the rank's standard error."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Final

_STDERR = 2
_MAX_LINE = 400


class FaultLog:
    """One process's faults. Any thread; never raises."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.is_silent = False
        """In forked children: what happens there is not this rank's."""

    def report(self, kind: str, error: BaseException) -> None:
        """Count a fault of this kind and print its first one; training goes on."""
        self._counts[kind] += 1
        if self._counts[kind] == 1 and not self.is_silent:
            text = str(error) or type(error).__name__
            say(f"{kind}: {text} (training goes on)")

    def sentences(self) -> tuple[str, ...]:
        """For the report."""
        return tuple(f"a fault of TraceML itself, {count}x: {kind}" for kind, count in sorted(self._counts.items()))


FAULTS: Final = FaultLog()
"""This process's."""


def say(text: str) -> None:
    """Write one line to standard error, past whatever the script has made of `sys.stderr`."""
    line = f"[TraceML] {text}".replace("\n", " ")[:_MAX_LINE] + "\n"
    with contextlib.suppress(OSError):
        os.write(_STDERR, line.encode("utf-8", "backslashreplace"))
