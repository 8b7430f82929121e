"""Bytes of several processes into one sequence in which lines stay whole. Pure: no I/O, `now_s` is an argument.

A line that is still being written is held back for at most `hold_s`, so that another process's line does not land in
the middle of it; then it is shown as far as it is (a progress bar never ends its line). Whoever writes next after
such an unfinished line begins on a line of its own: that newline is the only byte that is ever added.
"""

from __future__ import annotations

from typing import Final

MAX_HELD_BYTES: Final = 64 * 1024
"""Of one unfinished line; a longer one is passed on in pieces instead of growing in memory."""


class LineMerger:
    """Merges any number of sources, each named by a number of the caller's."""

    __slots__ = ("_held", "_hold_s", "_open_source")

    def __init__(self, *, hold_s: float) -> None:
        self._hold_s = hold_s
        self._held: dict[int, tuple[bytes, float]] = {}
        self._open_source: int | None = None

    def feed(self, source: int, data: bytes, *, now_s: float) -> bytes:
        """Take what `source` wrote; return what may be passed on now."""
        held, since_s = self._held.pop(source, (b"", now_s))
        whole, rest = _split(held + data if held else data)
        if rest:
            self._held[source] = (rest, now_s if whole else since_s)
        return self._emit(source, whole)

    def advance(self, *, now_s: float) -> bytes:
        """Return the unfinished lines that have been held for long enough, oldest first."""
        due = sorted(
            (since_s, source) for source, (_, since_s) in self._held.items() if since_s + self._hold_s <= now_s
        )
        return b"".join(self._emit(source, self._held.pop(source)[0]) for _, source in due)

    def end(self, source: int) -> bytes:
        """`source` is closed: return what it left unfinished."""
        rest, _ = self._held.pop(source, (b"", 0.0))
        return self._emit(source, rest)

    def next_deadline_s(self) -> float | None:
        """When `advance` has something to give; null while nothing is held."""
        if not self._held:
            return None
        return min(since_s for _, since_s in self._held.values()) + self._hold_s

    def _emit(self, source: int, data: bytes) -> bytes:
        if not data:
            return b""
        needs_break = self._open_source is not None and self._open_source != source
        self._open_source = None if data.endswith(b"\n") else source
        return b"\n" + data if needs_break else data


def _split(data: bytes) -> tuple[bytes, bytes]:
    """(whole lines, unfinished rest); an overlong rest is cut after its last carriage return, or anywhere."""
    end = data.rfind(b"\n") + 1
    if len(data) - end > MAX_HELD_BYTES:
        end = data.rfind(b"\r") + 1 or len(data)
        if len(data) - end > MAX_HELD_BYTES:
            end = len(data)
    return data[:end], data[end:]
