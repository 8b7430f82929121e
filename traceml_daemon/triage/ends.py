"""Exits of workers, put together from all who reported them: which are explained, and which came first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from traceml_daemon.triage.observations import Exit, Observations
from traceml_daemon.triage.windows import is_of_windows, status_of

_SHELL_SIGNALS: Final = frozenset({129, 130, 131, 132, 134, 135, 136, 137, 139, 143})
"""128 + n: what a shell or a container makes of a signal."""
_TIE_S: Final = 1.5
"""torchrun's table counts whole seconds."""
_MAX_DEVICES: Final = 8
"""Of one node, as a rule: where only ranks above speak, it is not the first one."""
_FATAL_SIGNALS: Final = frozenset({9, 11, 7, 4, 8})


@dataclass(slots=True)
class End:
    """How one worker ended."""

    code: int
    rank: int | None
    local_rank: int | None
    pid: int | None
    time: float | None
    reports: list[Exit]
    is_root: bool
    is_by_agent: bool = False
    """torchrun ended it: what it sent, or what only torchrun sends."""

    @property
    def is_fatal(self) -> bool:
        is_told = self.code < 0 or is_of_windows(self.code)
        return is_told and signal_of(self.code) in _FATAL_SIGNALS


def signal_of(code: int) -> int:
    """The number of the signal that an exit code tells of, or 0."""
    if is_of_windows(code):
        status = status_of(code)
        return status.number if status is not None else 0
    if code < 0:
        return -code
    return code - 128 if code in _SHELL_SIGNALS else 0


def is_multinode(seen: Observations) -> bool:
    """Whether several agents speak: then what counts ranks on one node does not name them."""
    tables = [one for one in seen.exits if one.source == "table"]
    if any(one.rank != one.local_rank for one in tables if one.rank is not None):
        return True
    if (seen.lowest_rank or 0) >= _MAX_DEVICES or len(seen.hosts) > 1:
        return True
    told_by = {one.pid: one.agent for one in reversed(seen.exits) if one.source == "agent"}
    return len(set(told_by.values())) > 1


def collect_ends(seen: Observations) -> list[End]:
    """One for each worker that an agent or a table speaks of."""
    ends: list[End] = []
    for one in seen.exits:
        if one.source not in ("agent", "table"):
            continue
        known = next((end for end in ends if _is_same(end, one)), None)
        if known is None:
            end = End(one.code, one.rank, one.local_rank, one.pid, None, [one], one.is_root)
            end.time = one.time if one.source == "table" else None
            ends.append(end)
            continue
        known.reports.append(one)
        known.is_root = known.is_root or one.is_root
        known.rank = one.rank if known.rank is None else known.rank
        if one.source == "table":
            known.rank, known.time, known.code = one.rank, one.time, one.code
    _attribute_to_agent(ends, seen)
    _number(ends, seen)
    return ends


def _is_same(end: End, one: Exit) -> bool:
    if end.reports[0].place.file != one.place.file:
        return False
    if end.pid is not None and one.pid is not None:
        return end.pid == one.pid
    if end.pid is None and one.pid is None:
        return (end.rank, end.local_rank) == (one.rank, one.local_rank)
    is_same_place = (one.local_rank is not None and one.local_rank == end.local_rank) or (
        one.rank is not None and one.rank == end.rank
    )
    return is_same_place and end.code == one.code


def _attribute_to_agent(ends: list[End], seen: Observations) -> None:
    sent = {(s.place.file, s.pid) for s in seen.signals if s.direction == "sent"}
    forced = {(s.place.file, s.pid) for s in seen.signals if s.direction == "forced"}
    for end in ends:
        where = end.reports[0].place.file, end.pid
        is_term = signal_of(end.code) in (15, 2, 1)
        others = [other for other in ends if other is not end and signal_of(other.code) not in (15, 2, 1)]
        end.is_by_agent = (is_term and (where in sent or (bool(others) and not end.is_root))) or where in forced


def _number(ends: list[End], seen: Observations) -> None:
    """A local rank is the global one where a single agent speaks and no table knows better."""
    agents = {end.reports[0].agent[:3] for end in ends}
    known = {end.local_rank: end.rank for end in ends if end.rank is not None}
    for end in ends:
        said = seen.global_ranks.get(end.reports[0].place.file, {})
        if end.rank is None and end.local_rank in said:
            end.rank = said[end.local_rank]
        elif end.rank is None and len(agents) == 1:
            is_single = all(rank == local for local, rank in known.items()) and not seen.is_multinode
            end.rank = end.local_rank if is_single else None


def first_end(ends: Iterable[End]) -> End | None:
    """The one that ended surely before all others; None on a tie, which a fatal signal among plain exits breaks."""
    rest = [end for end in ends if not end.is_by_agent]
    if len(rest) < 2:
        return rest[0] if rest else None
    times = [end.time for end in rest]
    known = [time for time in times if time is not None]
    if len(known) == len(rest):
        earliest = min(known)
        rest = [end for end in rest if end.time is not None and end.time - earliest < _TIE_S]
        if len(rest) == 1:
            return rest[0]
    fatal = [end for end in rest if end.is_fatal]
    return fatal[0] if len(fatal) == 1 else None


def task_ended_by(number: int, seen: Observations) -> int | None:
    """The rank of the only task that a scheduler saw end by this signal, where each task was shown to be a rank."""
    tasks = {one.agent[2] for one in seen.exits if one.source == "scheduler" and signal_of(one.code) == number}
    return tasks.pop() if len(tasks) == 1 and seen.tasks_are_ranks else None


def only_worker(seen: Observations) -> int | None:
    """0 where a launcher without torchelastic had one worker: it prints the number of the last one it started."""
    launched = [one for one in seen.exits if one.source == "launcher" and one.local_rank is not None]
    is_only = len(seen.killed_pids) <= 1 and seen.num_workers <= 1 and not seen.is_multinode
    return 0 if is_only and launched and all(one.local_rank == 0 for one in launched) else None
