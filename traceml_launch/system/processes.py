"""The processes of one run, found by its nonce and told apart by (pid, start time), never by a name.

A pid alone is reused; the start time of /proc/PID/stat makes it an identity, and the nonce in a process's environment
makes it ours. Signals go through a pidfd that is opened first and checked afterwards, so they cannot miss.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from traceml_client.protocol import environ
from traceml_client.protocol.process_identity import start_ticks
from traceml_launch.system import pidfds

_FIELDS_BEFORE_STATE = 2
_EXIT_CODE_INDEX = 52 - _FIELDS_BEFORE_STATE - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """One line of /proc/PID/stat, as far as we read it."""

    pid: int
    state: str
    parent_pid: int
    session: int
    start_ticks: int
    wait_status: int
    """Of an ended process that its parent has not reaped; 0 while it lives, or where we may not see it."""

    @property
    def is_zombie(self) -> bool:
        return self.state in "ZX"


def read_stat(pid: int) -> ProcessStat | None:
    """Null if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return ProcessStat(
        pid=pid,
        state=fields[0].decode(),
        parent_pid=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        wait_status=int(fields[_EXIT_CODE_INDEX]) if len(fields) > _EXIT_CODE_INDEX else 0,
    )


def children_of(pid: int) -> list[int]:
    """The direct children of a process, by any of its threads; empty where the kernel does not tell."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def command_of(pid: int) -> str:
    """Its command line, shortened, for people to read; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(1024).replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return ""


def is_discarding(pid: int, fd: int) -> bool:
    """Whether what a process writes there goes to the null device; false where that cannot be told."""
    try:
        return os.stat(f"/proc/{pid}/fd/{fd}").st_rdev == os.stat(os.devnull).st_rdev
    except OSError:
        return False


def variable_of(pid: int, name: str) -> str | None:
    """A variable of the environment that a process was started with; null if unset, gone, or not ours to read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    start = name.encode() + b"="
    return next((entry[len(start) :].decode(errors="replace") for entry in entries if entry.startswith(start)), None)


def of_run(nonce: str, *, adopter_pid: int = 0, spared: Collection[int] = ()) -> list[ProcessStat]:
    """Living processes that carry the run's nonce, or that descend from one that `adopter_pid` was given to keep.

    `spared` names pids that are never returned, and whose children are not looked at: launcher, daemon, warden.
    """
    stats = {stat.pid: stat for stat in _all_stats()}
    ours = {pid for pid in stats if pid not in spared and variable_of(pid, environ.RUN_NONCE) == nonce}
    if adopter_pid:
        ours |= {pid for pid, stat in stats.items() if stat.parent_pid == adopter_pid and pid not in spared}
        ours |= {pid for pid in stats if pid not in spared and _descends(pid, ours, stats)}
    return [stats[pid] for pid in sorted(ours) if not stats[pid].is_zombie]


def signal_process(pid: int, ticks: int, number: signal.Signals) -> bool:
    """Signal exactly that incarnation; False if it is gone."""
    pidfd = pidfds.open_pidfd(pid)
    if pidfd is None:
        return False
    try:
        return start_ticks(pid) == ticks and pidfds.send_signal(pidfd, number)
    finally:
        os.close(pidfd)


def reap_adopted(is_known: Callable[[int], bool]) -> None:
    """Reap ended orphans that fell to us as the subreaper, but never a known child: its owner waits for it."""
    for pid in children_of(os.getpid()):
        stat = read_stat(pid)
        if stat is not None and stat.is_zombie and not is_known(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _all_stats() -> Iterator[ProcessStat]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) is not None:
            yield stat


def _descends(pid: int, ancestors: set[int], stats: dict[int, ProcessStat]) -> bool:
    seen: set[int] = set()
    while pid in stats and pid not in seen:
        if pid in ancestors:
            return True
        seen.add(pid)
        pid = stats[pid].parent_pid
    return False
