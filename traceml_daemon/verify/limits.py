"""Memory, shared memory, descriptors and processes: what is allowed here now, against what the run had and used."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from traceml_daemon.report.measured_form import NodeSystem
from traceml_daemon.report.text import size_text
from traceml_daemon.verify.case import Case, CheckResult, gone, not_checkable, still_there

_MIB: Final = 1024 * 1024
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_SHM: Final = Path("/dev/shm")
_SHM_WORDS: Final = r"(?i)shared memory|\bshm\b|/dev/shm"
_RAISED: Final = 1.1
"""A limit counts as raised from a tenth more on."""
_USED_UP: Final = 0.9
"""A limit was the cause where this share of it was used."""


def memory_limit(case: Case) -> CheckResult:
    """The smaller of machine and control group, now and in the failed run."""
    groups = (_number(folder / "memory.max") for folder in _cgroups())
    now = min([*(limit for limit in groups if limit is not None), psutil.virtual_memory().total])
    then, used = _memory_limit_then(case), _memory_used(case)
    if then is None:
        return not_checkable(f"the run recorded no memory limit to compare with; here it is {size_text(now)}")
    if now >= then * _RAISED:
        return gone(f"the memory limit here is {size_text(now)}; in the failed run it was {size_text(then)}")
    if used is not None and used >= then * _USED_UP:
        return still_there(f"the memory limit is {size_text(now)} and the run used {size_text(used)}")
    seen = "how much the run used is not known" if used is None else f"the run was seen to use {size_text(used)}"
    return not_checkable(f"the memory limit is {size_text(now)} as in the failed run, and {seen}: run it again")


def shared_memory(case: Case) -> CheckResult:
    try:
        found = os.statvfs(_SHM)
    except OSError as error:
        return not_checkable(f"{_SHM}: {error.strerror}")
    total, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    room = f"{_SHM} has {size_text(free)} free of {size_text(total)}"
    if free < case.check.at_least_mib * _MIB:
        return still_there(room)
    system = _system(case)
    then = system.shm_total_bytes if system is not None else None
    if then and total < then * _RAISED:
        return not_checkable(f"{room}; it is no larger than in the failed run, and what fills it is in the job")
    if not then and not case.has_in_evidence(_SHM_WORDS):
        return not_checkable(f"{room}; nothing says that it was too small in the failed run")
    return gone(room)


def open_files(case: Case) -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max((rank.max_open_files or 0 for rank in case.summary.process.by_rank), default=0) if case.summary else 0
    needed = max(case.check.at_least, int(most * _RAISED) + 1 if most else 0)
    seen = f", and a rank of the run had {most} open" if most else ""
    if soft < needed:
        return still_there(f"the limit on open files is {soft} here (ulimit -n){seen}; the hard limit is {hard}")
    return gone(f"the limit on open files is {soft} here (ulimit -n){seen}")


def processes(case: Case) -> CheckResult:
    """Room below each limit on threads and processes, which are counted together."""
    room = dict(_process_room())
    if not room:
        return not_checkable("no limit on processes can be read here")
    name, (limit, used) = min(room.items(), key=lambda item: item[1][0] - item[1][1])
    threads = sum(rank.max_threads or 0 for rank in case.summary.process.by_rank) if case.summary else 0
    needed = max(case.check.at_least, int(threads * _RAISED))
    seen = f"; the ranks of the run had {threads}" if threads else ""
    found = f"{used} of {limit} processes and threads are in use ({name}){seen}"
    return still_there(found) if limit - used < needed else gone(found)


def _process_room() -> Iterator[tuple[str, tuple[int, int]]]:
    """Name of the limit to (limit, used)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        yield "ulimit -u", (soft, _threads_of(os.geteuid()))
    for folder in _cgroups():
        limit, used = _number(folder / "pids.max"), _number(folder / "pids.current")
        if limit is not None and used is not None:
            yield f"pids.max of {folder.name or 'the control group'}", (limit, used)
    system = _number(Path("/proc/sys/kernel/threads-max"))
    if system is not None:
        yield "kernel.threads-max", (system, sum(1 for _ in Path("/proc").glob("[0-9]*/task/*")))


def _threads_of(user: int) -> int:
    found = (each.info for each in psutil.process_iter(["uids", "num_threads"]))
    return sum(each["num_threads"] or 1 for each in found if each["uids"] is not None and each["uids"].real == user)


def _memory_limit_then(case: Case) -> int | None:
    node, system = case.node, _system(case)
    group = node.kernel.get("memory.max", "") if node is not None else ""
    known = [int(group)] if group.isdecimal() else []
    if system is not None:
        known += [limit for limit in (system.memory_total_bytes, system.cgroup_memory_limit_bytes) if limit]
    return min(known, default=None)


def _memory_used(case: Case) -> float | None:
    """At the most: the control group as sampled, or all ranks of the node together at their peaks."""
    system = _system(case)
    if case.summary is None or case.node is None or system is None:
        return None
    ranks = {end.rank for end in case.node.ranks}
    peaks = sum(each.peak_rss_bytes or 0 for each in case.summary.memory.by_rank if each.rank in ranks)
    group = system.cgroup_memory_bytes.max if system.cgroup_memory_bytes is not None else 0
    return max(peaks, group) or None


def _system(case: Case) -> NodeSystem | None:
    """What was sampled of the node that failed."""
    if case.summary is None or case.node is None:
        return None
    index = case.node.node_index
    return next((each for each in case.summary.system.by_node if each.node_rank == index), None)


def _cgroups() -> Iterator[Path]:
    """Our own control group and those it lies in (version 2)."""
    lines = _text(Path("/proc/self/cgroup")).splitlines()
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    folder = _CGROUP_ROOT / own
    yield from (folder, *(parent for parent in folder.parents if parent.is_relative_to(_CGROUP_ROOT)))


def _number(path: Path) -> int | None:
    """Null for `max` and where there is no such file."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
