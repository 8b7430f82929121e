"""How long to wait before the next attempt to reach the daemon."""

from __future__ import annotations

import os

_FIRST_S = 0.1
_LONGEST_S = 2.0
"""Under the daemon's reconnect grace of 5 s, so that a rank is back in time after its daemon's restart."""


class Backoff:
    """Doubles from 0.1 s to 2 s; each wait is between half of that and all of it.

    So 1,024 ranks do not come at once. The chance comes from the system: the state of `random` belongs to the script.
    """

    __slots__ = ("_limit_s",)

    def __init__(self) -> None:
        self._limit_s = _FIRST_S

    def next_wait_s(self) -> float:
        limit_s = self._limit_s
        self._limit_s = min(2 * limit_s, _LONGEST_S)
        return limit_s * (0.5 + os.urandom(1)[0] / 510)

    def reset(self) -> None:
        self._limit_s = _FIRST_S
