"""What kernel and control group recorded while training ran: out-of-memory kills above all.

Read once before and once after; only what changed is evidence. Everything here may be missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_EVENTS: Final = ("oom", "oom_kill", "max")


class KernelEvidence:
    """Takes its first reading when it is made."""

    def __init__(self) -> None:
        self._before = _counters()

    def since_start(self) -> dict[str, str]:
        """Counters that rose, and the memory limit of the control group if it has one."""
        found = {
            name: str(value - self._before.get(name, 0))
            for name, value in _counters().items()
            if value > self._before.get(name, 0)
        }
        limit = _text(_own_cgroup() / "memory.max")
        if limit and limit != "max":
            found["memory.max"] = limit
        return found


def _counters() -> dict[str, int]:
    found = {}
    for line in _text(_own_cgroup() / "memory.events").splitlines():
        name, _, value = line.partition(" ")
        if name in _EVENTS:
            found[f"memory.events {name}"] = int(value)
    for line in _text(Path("/proc/vmstat")).splitlines():
        if line.startswith("oom_kill "):
            found["vmstat oom_kill"] = int(line.split()[1])
    return found


def _own_cgroup() -> Path:
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::"):
            return _CGROUP_ROOT / line[3:].lstrip("/")
    return _CGROUP_ROOT


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
