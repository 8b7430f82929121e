"""How processes end on Windows: codes for what is a signal elsewhere, and what they are called. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_ILLEGAL, _ABORT, _ARITHMETIC, _SEGFAULT, _INTERRUPT = 4, 6, 8, 11, 2
_MAX_CODE: Final = 255
"""Elsewhere an exit code is no larger."""


@dataclass(frozen=True, slots=True)
class Status:
    """A code by which Windows, and no script, says why a process is gone."""

    number: int
    """Of the signal that is the same elsewhere."""
    name: str


_STATUSES: Final = {
    0xC0000005: Status(_SEGFAULT, "an access violation"),
    0xC00000FD: Status(_SEGFAULT, "a stack overflow"),
    0xC0000374: Status(_ABORT, "a corrupted heap"),
    0xC0000409: Status(_ABORT, "a fast failure, which is what abort does"),
    0xE06D7363: Status(_ABORT, "an uncaught exception of C++"),
    0xC000001D: Status(_ILLEGAL, "an illegal instruction"),
    0xC0000094: Status(_ARITHMETIC, "a division of an integer by zero"),
    0xC000013A: Status(_INTERRUPT, "Ctrl-C or a closed console"),
}


def status_of(code: int) -> Status | None:
    """Of the code as it is, or as the negative number that some launchers print of it."""
    return _STATUSES.get(code & 0xFFFFFFFF) if is_of_windows(code) else None


def is_of_windows(code: int) -> bool:
    """Whether no other system has such an exit code or signal."""
    return abs(code) > _MAX_CODE


def described(code: int) -> str:
    status = status_of(code)
    return f"{status.name} (0x{code & 0xFFFFFFFF:08X})" if status is not None else f"0x{code & 0xFFFFFFFF:08X}"
