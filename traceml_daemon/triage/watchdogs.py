"""What the watchdogs of process groups say of a collective that they gave up. Pure."""

from __future__ import annotations

import re
from typing import Final

from traceml_daemon.triage.lines import Line
from traceml_daemon.triage.observations import Place, Watchdog

_WATCHDOG: Final = re.compile(
    r"Work[A-Z]CCL\(SeqNum=(\d{1,18}), OpType=(\w+)(?:, [^)]*?NumelIn=(\d{1,18}))?[^)]*, "
    r"Timeout\(ms\)=\d+\) ran for \d+ milli"
)
_GROUP: Final = re.compile(r"\[(PG [^\]]*?)\s*Rank (\d{1,6})\]|\[Rank (\d{1,6})\]")
_OF_ALL: Final = re.compile(r"\[(?:PG (?:0|ID 0 PG GUID 0(?:\(default_pg\))?) )?Rank (\d{1,6})\]")
_DEFAULT_GROUP: Final = re.compile(r"default_pg|PG 0\b|PG ID 0\b|^$")


def rank_in_group(text: str) -> int | None:
    """`[PG ID 0 PG GUID 0(default_pg) Rank 6]`: in the group of all ranks this is the global one."""
    found = _OF_ALL.search(text)
    return int(found[1]) if found is not None else None


def watchdog_of(line: Line, place: Place) -> Watchdog | None:
    """Of NCCL's, or of what other devices have instead."""
    found = _WATCHDOG.search(line.text)
    if found is None:
        return None
    group = _GROUP.search(line.text)
    name = (group[1] or "") if group else ""
    rank = line.speaker.rank
    if rank is None and group is not None and _DEFAULT_GROUP.search(name):
        rank = int(group[2] or group[3])
    return Watchdog(place, rank, int(found[1]), found[2], int(found[3]) if found[3] else None, name)
