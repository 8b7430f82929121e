"""Prefixes of collectors that we do not know: learned where a line shows where its own text begins. Pure."""

from __future__ import annotations

import re
from typing import Final

_START: Final = re.compile(
    r"Traceback \(most recent call last\)|\[rank\d{1,6}\]:|(?<=\S )  File \"[^\"]+\", line \d"
    r"|[VIWE]\d{4} \d\d:\d\d:\d\d\.\d{6} |(?:INFO|WARNING|ERROR):torch\.distributed"
    r"|Fatal Python error: [A-Z]|Root Cause \(first observed failure\):"
)
"""What stands at the beginning of a line that a rank or torchrun wrote, and nowhere else."""
_MAX_CHARS: Final = 160
_MAX_PREFIXES: Final = 16
_QUOTING: Final = re.compile(r"[\"'\\]|^    \s*[A-Za-z]|^ *traceback *: *$")
"""Code or data that speaks of a traceback, and torchrun's table."""
_VARYING: Final = re.compile(r"(?:\\ )*\d+|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:\\ )*")
_RANK: Final = re.compile(r"(?i)(?<![a-z_])r(?:ank)?[ =:_]*(\d{1,6})\b")
_OTHER_RANK: Final = re.compile(r"(?i)local|node|group|\bip=")
_TIME: Final = re.compile(r"(?<!\d)(\d\d):(\d\d):(\d\d(?:[.,]\d+)?)|(?<!\d)(1\d{9}\.\d+)")
_SOURCE: Final = re.compile(r"[A-Za-z][A-Za-z0-9.]*[-_][\w.-]*\w")


class ForeignPrefixes:
    """Of one log."""

    __slots__ = ("_known", "is_in_table")

    def __init__(self) -> None:
        self._known: dict[str, re.Pattern[str]] = {}
        self.is_in_table = False
        """torchrun indents what stands in its table: nothing is to be learned from that."""

    def cut(self, text: str) -> tuple[str, str]:
        """The prefix of a line and the rest; the prefix is empty where none is known."""
        start = None if self.is_in_table else _START.search(text, 0, _MAX_CHARS)
        if start is not None:
            prefix = text[: start.start()]
            if not prefix or _QUOTING.search(prefix):
                return "", text
            self._learn(prefix)
            return prefix, text[start.start() :]
        found = next((found for known in self._known.values() if (found := known.match(text)) is not None), None)
        return (found[0], text[found.end() :]) if found is not None else ("", text)

    def _learn(self, prefix: str) -> None:
        pattern = _VARYING.sub(lambda one: r" *\d+" if one[0][-1].isdigit() else r"[A-Z]+ *", re.escape(prefix))
        if pattern not in self._known and len(self._known) < _MAX_PREFIXES:
            self._known[pattern] = re.compile(pattern)


def rank_in(prefix: str) -> int | None:
    """The global rank that a prefix names."""
    found = _RANK.search(prefix) if not _OTHER_RANK.search(prefix) else None
    return int(found[1]) if found is not None else None


def source_in(prefix: str) -> str | None:
    """The host or pod that a prefix names."""
    found = _SOURCE.search(prefix)
    return found[0] if found is not None else None


def time_in(prefix: str) -> float | None:
    """Seconds of the day or of the epoch, as far as a prefix without a date tells."""
    found = _TIME.search(prefix)
    if found is None:
        return None
    if found[4] is not None:
        return float(found[4])
    return (int(found[1]) * 60 + int(found[2])) * 60 + float(found[3].replace(",", "."))
