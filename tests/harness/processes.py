"""Processes of one test, found by a mark in their environment. Nothing else is ever looked at twice, or signalled."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MARK = "TRACEML_TEST_MARK"
"""Set for whatever a test starts; children inherit it."""


def hear_signals_again() -> None:
    """Undo what `nohup` and a shell's `&` do to us and to all that we start: SIGHUP, SIGINT and SIGQUIT ignored."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class FoundProcess:
    pid: int
    parent_pid: int
    command: str


def find_marked(name: str, value: str) -> list[FoundProcess]:
    """Living processes whose environment says `name=value`; a zombie is not alive."""
    wanted = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                state, parent_pid = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                if state != "Z":
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    found.append(FoundProcess(int(entry.name), int(parent_pid), command))
    return found


def signal_marked(name: str, value: str, pid: int, number: int) -> bool:
    """Signal `pid` if it still carries the mark: a pid that was given to somebody else meanwhile is left alone."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if any(found.pid == pid for found in find_marked(name, value)):
                signal.pidfd_send_signal(pidfd, number)
                return True
        finally:
            os.close(pidfd)
    return False


def end_marked(name: str, value: str, *, within_s: float = 10.0) -> list[FoundProcess]:
    """SIGKILL everything that carries the mark; returns what was found first."""
    first = find_marked(name, value)
    deadline_s = time.monotonic() + within_s
    while (alive := find_marked(name, value)) and time.monotonic() < deadline_s:
        for process in alive:
            signal_marked(name, value, process.pid, signal.SIGKILL)
        select.select([], [], [], 0.05)
    return first


def wait_until(
    is_true: Callable[[], bool], why: str, *, within_s: float, pidfd: int | None = None, tick_s: float = 0.05
) -> None:
    """Wait for a condition, looking every `tick_s` and at once when the process behind `pidfd` ends.

    Raises:
        TimeoutError: it did not come true within `within_s`; the text says what was waited for.
    """
    deadline_s = time.monotonic() + within_s
    watched = [] if pidfd is None else [pidfd]
    while not is_true():
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"{why}: not within {within_s:g} s")
        ready, _, _ = select.select(watched, [], [], tick_s)
        if ready:
            watched = []
