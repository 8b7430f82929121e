"""Pure: what a signal to the launcher means, and when torchrun's time to end is over."""

from __future__ import annotations

import signal
from typing import Final, Literal

TORCHRUN_MARGIN_S: Final = 5.0
"""What torchrun gets beyond its own shutdown time-out before we kill it."""
FINISH_RESERVE_S: Final = 1.0
"""Of `--grace-sec`: the part that is ours, for the last records and the reports."""
REPEAT_WINDOW_S: Final = 0.5
"""Two arrivals within this time are one signal: `timeout` sends its own to a program and then to its group."""

Meaning = Literal["first", "repeated", "hurry"]


class StopPlan:
    """The signals of one launch, in the order of their arrival."""

    def __init__(self, *, shutdown_timeout_s: float, grace_s: float | None) -> None:
        self._shutdown_timeout_s = shutdown_timeout_s
        self._grace_s = grace_s
        self._first_at_s: float | None = None
        self.first: signal.Signals | None = None
        """What the launch was interrupted by."""
        self.is_hurried = False

    def received(self, number: signal.Signals, *, now_s: float) -> Meaning:
        if self._first_at_s is None:
            self.first, self._first_at_s = number, now_s
            return "first"
        if now_s - self._first_at_s < REPEAT_WINDOW_S:
            return "repeated"
        self.is_hurried = True
        return "hurry"

    def kill_at_s(self) -> float | None:
        """When torchrun and its workers are killed; null while no signal came."""
        if self._first_at_s is None:
            return None
        if self.is_hurried:
            return self._first_at_s
        return self._first_at_s + self.torchrun_grace_s()

    def torchrun_grace_s(self) -> float:
        """How long torchrun may take from its first signal to its end."""
        own_s = self._shutdown_timeout_s + TORCHRUN_MARGIN_S
        if self._grace_s is None:
            return own_s
        return min(own_s, max(self._grace_s / 2, self._grace_s - FINISH_RESERVE_S))

    def end_by_s(self) -> float | None:
        """When everything of ours must be over; null: no deadline from outside."""
        if self._first_at_s is None or self._grace_s is None:
            return None
        return self._first_at_s + self._grace_s
