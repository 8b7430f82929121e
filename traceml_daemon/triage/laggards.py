"""Records of how far each rank is, in one line: which one did not move. Pure."""

from __future__ import annotations

import re
from typing import Final

LITERALS: Final = ("| rank ", ", rank ", "; rank ", "per rank", "by rank", "heartbeat")
"""Words of which at least one stands in every such line, in lower case."""
_NAMED: Final = re.compile(
    r"(?i)\brank[ =:#]*(\d{1,6})\W{1,3}(?:(?:at|is|in|last) )*(?:step|iter(?:ation)?)[ =:#]*(\d{1,15})\b"
)
_LISTED: Final = re.compile(r"\b(\d{1,6}) ?[=:] ?(\d{1,15})\b")
_IS_LIST: Final = re.compile(r"(?i)\b(?:steps?|iter(?:ation)?s?|progress)\b.{0,12}\b(?:per|by) rank\b")
_MIN_RANKS: Final = 3
"""Of two that differ nothing says which one should have moved."""


def ranks_behind(text: str) -> list[int] | None:
    """Those that are not as far as the furthest, of at least three ranks; null: the line is no such record."""
    pairs = _NAMED.findall(text) or (_LISTED.findall(text) if _IS_LIST.search(text) else [])
    steps = {int(rank): int(step) for rank, step in pairs}
    if len(steps) < _MIN_RANKS:
        return None
    return [rank for rank, step in steps.items() if step < max(steps.values())]
