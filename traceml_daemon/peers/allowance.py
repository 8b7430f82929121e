"""Pure: how fast somebody may go on for long, and how much at once before that counts (a token bucket)."""

from __future__ import annotations


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
