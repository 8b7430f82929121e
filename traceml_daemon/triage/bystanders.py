"""Records of a kernel that are about a process which is none of the job's. Pure."""

from __future__ import annotations

import re
from typing import Final

from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.ends import End, signal_of
from traceml_daemon.triage.observations import Observations

_PID: Final = re.compile(
    r"(?:\b(?:pid|PID|[Pp]rocess)[\s:='\"(]*(\d{2,10})\b"
    r"|(?:^|\"|[>\]]: ?)\[?[A-Za-z][\w.-]*:(\d{2,10}) ?:\d+(?=[: ]))"
)
"""`Killed process 4711 (python)`, `pid=4711`, `node-a:4711:4712 [0] NCCL WARN`."""
_NAME: Final = re.compile(r"[Pp]rocess \d+ \(([^)]+)\)|\btask=([^,]+),pid=\d")
_INVOKER: Final = "invoked oom-killer"
"""Says who asked for memory, not who was killed."""
_TRAINS: Final = re.compile(r"(?i)py|^pt_|torch|train|tun|ray|speed|accel|worker|model|llm|llama|gpt|megatron|nemo")
"""Names of processes that may be a rank's; titles can be set."""
_NEAR_S: Final = 90.0
_ZONE_S: Final = 1800.0
"""Clocks of two time zones differ by a multiple of it."""
_YEAR_S: Final = (31 * 86_400.0, 1e9)
"""Between these a time is of a clock with a date and without a year."""


def pids_in(text: str) -> set[int]:
    """The processes that a line names."""
    return {int(found[1] or found[2]) for found in _PID.finditer(text)}


def without_bystanders(causes: list[Cause], ends: list[End], seen: Observations) -> list[Cause]:
    """All but the records of kills that took another process: by its number, and its name or the time."""
    kills = [cause for cause in causes if cause.tier == Tier.RECORD and cause.category == "host_oom_kill"]
    if not kills or not ends:
        return causes
    own = {end.pid for end in ends} | {one.pid for one in seen.signals} | seen.killed_pids | seen.processes.pids
    own |= {pid for one in seen.raised for pid in pids_in(one.message)}
    killed = any(signal_of(one.code) == 9 for one in seen.exits) or any("illed" in one.message for one in seen.raised)
    others = [cause for cause in kills if _is_of_others(cause, own, ends if killed else [])]
    for cause in kills:
        if _INVOKER in cause.place.quote:
            event = next((one for one in kills if one.order > cause.order and _NAME.search(one.place.quote)), None)
            others += [cause] if event in others and event.place.file == cause.place.file else []
    return [cause for cause in causes if cause not in others]


def _is_of_others(cause: Cause, own: set[int | None], ends: list[End]) -> bool:
    """`ends`: none if nothing of the job was killed."""
    name = _NAME.search(cause.place.quote)
    if name is None or pids_in(cause.place.quote) & own:
        return False
    return not ends or _TRAINS.search(name[1] or name[2]) is None or _is_of_another_time(cause, ends)


def _is_of_another_time(cause: Cause, ends: list[End]) -> bool:
    """A container counts processes anew, so that only the time tells; clocks of different kinds do not."""
    killed = [end for end in ends if signal_of(end.code) == 9]
    times = [time for end in killed for time in (end.time, end.reports[0].time) if time is not None]
    if cause.time is None or not all(_YEAR_S[0] <= time < _YEAR_S[1] for time in (cause.time, *times)):
        return False
    apart = [abs(time - cause.time) % _ZONE_S for time in times]
    return bool(apart) and all(_NEAR_S < one < _ZONE_S - _NEAR_S for one in apart)
