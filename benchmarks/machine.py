"""Reads what the kernel says of a process and of this machine. Times of a process are CPU seconds."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "uvloop", "msgspec", "numpy", "aiosqlite")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_mb(pid: int, *, is_peak: bool = False) -> float:
    """Resident memory now, or the most it ever was, in MB of 1024 * 1024 bytes."""
    key = "VmHWM:" if is_peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(is_true: Callable[[], bool], why: str, *, within_s: float, tick_s: float = 0.002) -> float:
    """Wait for a condition; returns the seconds it took. Raises TimeoutError."""
    started_s = time.perf_counter()
    while not is_true():
        if time.perf_counter() - started_s > within_s:
            raise TimeoutError(f"{why}: not within {within_s:g} s")
        time.sleep(tick_s)
    return time.perf_counter() - started_s


def describe() -> dict[str, Any]:
    """The machine, for the result file."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory[0]) / (1 << 20), 1) if memory else None,
        "kernel": platform.release(),
        "versions": {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "commit": _commit(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _commit() -> str | None:
    """What was measured; with a plus where files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(git, capture_output=True, text=True)
    return done.stdout.strip() or None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
