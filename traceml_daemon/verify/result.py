"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class CheckResult:
    state: Literal["gone", "still there", "cannot be checked here"]
    why: str
    """What was looked at, and what was found."""


def gone(why: str) -> CheckResult:
    return CheckResult("gone", why)


def still_there(why: str) -> CheckResult:
    return CheckResult("still there", why)


def not_checkable(why: str) -> CheckResult:
    return CheckResult("cannot be checked here", why)


def printable(text: str) -> str:
    """Text of a log on one line of a terminal, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text)
