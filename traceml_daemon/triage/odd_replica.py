"""Of replicas of a model that differ, the odd one: by majority, from what DDP's check said on each rank. Pure.

The check compares every rank with one other. If that one is the odd one, all the rest raise and it does not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

CATEGORY: Final = "ddp_model_mismatch"
_COUNTS: Final = re.compile(r"[Rr]ank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
_SHAPES: Final = re.compile(
    r"\[(\d+)\]: params\[(\d+)\] in this process with sizes (\[[^\]]*\]) appears not to match .*? in process (\d+)"
)
_MAX_PARAMETERS: Final = 10_000_000
"""A number above it, or 0, is none that a model has: that rank did something else."""
_MIN_RANKS: Final = 3
"""Of two that differ neither is the odd one."""


def is_comparison(message: str) -> bool:
    """Whether it compares two replicas: then the rank that raised it may be either."""
    return _COUNTS.search(message) is not None or _SHAPES.search(message) is not None


def odd_replica(messages: Iterable[str], world_size: int) -> int | None:
    """The global rank whose model differs from all others'; null where the messages do not tell."""
    ranks_by_count: dict[str, set[int]] = defaultdict(set)
    ranks_by_shape: dict[tuple[str, str], set[int]] = defaultdict(set)
    compared_with = set()
    for message in messages:
        for rank, count, other, other_count in _COUNTS.findall(message):
            if not all(0 < int(number) < _MAX_PARAMETERS for number in (count, other_count)):
                return None
            ranks_by_count[count].add(int(rank))
            ranks_by_count[other_count].add(int(other))
        for rank, parameter, sizes, other in _SHAPES.findall(message):
            ranks_by_shape[parameter, sizes].add(int(rank))
            compared_with.add(int(other))
    if world_size < _MIN_RANKS:
        return None
    if len(ranks_by_count) == 2:
        few, many = sorted(ranks_by_count.values(), key=len)
        return next(iter(few)) if len(few) == 1 < len(many) else None
    if len(ranks_by_shape) == 1 and len(compared_with) == 1:
        raised = next(iter(ranks_by_shape.values()))
        if len(raised) == 1:
            return next(iter(raised))
        return next(iter(compared_with)) if len(raised) == world_size - 1 else None
    return None
