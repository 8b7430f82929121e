"""Records of how far each rank is: which one did not move. Pure."""

from __future__ import annotations

import re
from typing import Final

LITERALS: Final = ("| rank ", ", rank ", "; rank ", "per rank", "by rank", "heartbeat")
"""Words of which at least one stands in every line with all ranks, in lower case."""
_NAMED: Final = re.compile(
    r"(?i)\brank[ =:#]*(\d{1,6})\W{1,3}(?:(?:at|is|in|last) )*(?:step|iter(?:ation)?)[ =:#]*(\d{1,15})\b"
)
_LISTED: Final = re.compile(r"\b(\d{1,6}) ?[=:] ?(\d{1,15})\b")
_IS_LIST: Final = re.compile(r"(?i)\b(?:steps?|iter(?:ation)?s?|progress)\b.{0,12}\b(?:per|by) rank\b")
_INDENTED: Final = re.compile(r"\s|[-*] ")
_MIN_RANKS: Final = 3
"""Of two that differ nothing says which one should have moved."""


class ProgressRecords:
    """Of one log: all ranks in one line, or a list with a line for each."""

    __slots__ = ("_last", "_steps")

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._last = 0

    def take(self, number: int, text: str) -> list[int] | None:
        """Those that are not as far as the furthest, of at least three ranks; null: the line ends no such record."""
        pairs = _NAMED.findall(text) or (_LISTED.findall(text) if _IS_LIST.search(text) else [])
        if not pairs or (len(pairs) == 1 and not _INDENTED.match(text)):
            return None
        is_next = len(pairs) == 1 and number == self._last + 1
        steps = {int(rank): int(step) for rank, step in pairs}
        self._steps, self._last = ({**self._steps, **steps} if is_next else steps), number
        if len(self._steps) < _MIN_RANKS:
            return None
        return [rank for rank, step in self._steps.items() if step < max(self._steps.values())]
