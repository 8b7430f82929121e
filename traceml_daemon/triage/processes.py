"""Which process is which rank, as the start lines of scripts, of DeepSpeed's launcher and of NCCL tell."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

LITERALS: Final = ("rank ", "rank=", "rank:", 'rank"', "rank'", "rank#")
"""One of them stands in every line that tells it, in lower case; most lines with one tell nothing."""
_RANK: Final = re.compile(
    r"(?<![A-Za-z_\d-])(?<![Ll]ocal )(?<![Nn]ode )(?<![Gg]roup )"
    r"(?:[Gg](?:lobal|LOBAL)[ _])?(?:[Rr]ank|RANK)[ =:#\"']{1,4}(\d{1,6})\b"
)
_PID: Final = re.compile(r"(?<!parent )\b(?:pid|PID)[ =:#\"']{1,4}(\d{2,10})\b")
_NCCL: Final = re.compile(
    r"(?<!\d)(\d{2,10}):\d{1,10} \[\d{1,4}\] NCCL INFO (?:\w+ )?comm 0x\w+ rank (\d{1,6}) nranks (\d{1,7})\b"
)
_SPAWNED: Final = re.compile(r"\bprocess (\d{2,10}) spawned with command: .*--local[_-]rank=(\d{1,6})\b")
_ON_A_NODE: Final = 0
_BY_SCRIPT: Final = 1 << 30
"""Beats what NCCL says of any group."""
_MAX_CHARS: Final = 300
_MAX_PROCESSES: Final = 4096


def may_tell(line: bytes) -> bool:
    """Whether a line is worth a look: cheap, as every line of a log is asked."""
    if b"ank" not in line and b"RANK" not in line:
        return False
    return any(word in line for word in (b"pid", b"PID", b" nranks ", b" spawned "))


class ProcessRanks:
    """Of all files. A process that was told to be two ranks is none that is known."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[int, tuple[int, int | None]] = {}
        """By process: the size of the group in which it was told, and the rank; None: it was told to be several."""

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self._told)

    def take(self, text: str) -> bool:
        """Whether a line tells it."""
        if found := _NCCL.search(text):
            self._note(int(found[1]), int(found[2]), int(found[3]))
            return True
        if found := _SPAWNED.search(text):
            self._note(int(found[1]), int(found[2]), _ON_A_NODE)
            return True
        if len(text) > _MAX_CHARS:
            return False
        ranks, pids = set(_RANK.findall(text)), set(_PID.findall(text))
        if len(ranks) != 1 or len(pids) != 1:
            return False
        self._note(int(pids.pop()), int(ranks.pop()), _BY_SCRIPT)
        return True

    def rank_of(self, pid: int, *, num_workers: int, is_multinode: bool) -> int | None:
        """None where it may count something else: a smaller group, the ranks of a node.

        Of one job a rank has one process, except that a script may be started anew.
        """
        size, rank = self._told.get(pid, (0, None))
        alike = Counter(other for group, other in self._told.values() if group == size)
        if rank is None or (alike[rank] > 1 and (is_multinode or size != _BY_SCRIPT)):
            return None
        if size == _ON_A_NODE:
            return None if is_multinode or num_workers > len(alike) else rank
        is_of_smaller = any(size < group < _BY_SCRIPT for group, _ in self._told.values())
        return rank if not is_of_smaller or size == _BY_SCRIPT else None

    def _note(self, pid: int, rank: int, size: int) -> None:
        known = self._told.get(pid)
        if known is None and len(self._told) >= _MAX_PROCESSES:
            return
        if known is None or known[0] < size:
            self._told[pid] = size, rank
        elif known[0] == size and known[1] != rank:
            self._told[pid] = size, None
