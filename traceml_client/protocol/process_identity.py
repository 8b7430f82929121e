"""Which process is meant: its pid and the time it started, a pair that no other process of a host ever has."""

from __future__ import annotations

_START_TICKS_FIELD = 22


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat, in clock ticks since boot; 0 where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        # The command name, in parentheses, may hold spaces and parentheses itself: count from the last one.
        return int(text[text.rindex(b")") + 2 :].split()[_START_TICKS_FIELD - 3])
    except (OSError, ValueError, IndexError):
        return 0
