"""What a finished report tells the rest of the daemon; apart from `write`, which is imported only to make one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What the terminal and the manifest say of a failure; empty after success."""

    failure_lines: tuple[str, ...] = ()
    failure_sentence: str | None = None
