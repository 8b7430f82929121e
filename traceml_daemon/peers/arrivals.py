"""How often an address may come before the first of it is let in; and how fast anybody may go on.

An address that has a member is never slowed: a stranger on the same host cannot be told from a rank by its address. All
others share nothing with the run, so a flood from there costs no more than its accepts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final


class Allowance:
    """Fills at `per_s` up to `burst`; what is taken beyond it is a debt that time pays back."""

    __slots__ = ("_at_s", "_burst", "_left", "_per_s")

    def __init__(self, *, per_s: float, burst: float, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s = now_s

    def take(self, number: float, *, now_s: float) -> float:
        """Take `number`, there or not; return the seconds until the debt is paid, 0 where there is none."""
        self._refill(now_s)
        self._left -= number
        return 0.0 if self._left >= 0 else -self._left / self._per_s

    def take_if_there(self, number: float, *, now_s: float) -> bool:
        """Take `number` if there is that much, else nothing."""
        self._refill(now_s)
        if self._left < number:
            return False
        self._left -= number
        return True

    def _refill(self, now_s: float) -> None:
        self._left = min(self._burst, self._left + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s


BURST: Final = 2048
"""All ranks of a large host, before the first one is welcome."""
PER_S: Final = 64.0
MAX_ADDRESSES: Final = 4096
"""Remembered of each kind; the oldest is forgotten first."""


class Arrivals:
    """Every accepted connection asks `may_come`; whoever is let in makes its address known."""

    def __init__(self, *, burst: float = BURST, per_s: float = PER_S) -> None:
        self._burst = burst
        self._per_s = per_s
        self._known: OrderedDict[str, None] = OrderedDict()
        self._allowances: OrderedDict[str, Allowance] = OrderedDict()

    @property
    def num_addresses(self) -> int:
        """That are remembered."""
        return len(self._known) + len(self._allowances)

    def may_come(self, address: str, *, now_s: float) -> bool:
        if address in self._known:
            return True
        allowance = self._allowances.get(address)
        if allowance is None:
            allowance = self._allowances[address] = Allowance(per_s=self._per_s, burst=self._burst, now_s=now_s)
            if len(self._allowances) > MAX_ADDRESSES:
                self._allowances.popitem(last=False)
        return allowance.take_if_there(1, now_s=now_s)

    def welcome(self, address: str) -> None:
        """Somebody from there was let in."""
        self._allowances.pop(address, None)
        self._known[address] = None
        self._known.move_to_end(address)
        if len(self._known) > MAX_ADDRESSES:
            self._known.popitem(last=False)
