"""Whether work went on behind an exception, which a job that caught it does. Pure."""

from __future__ import annotations

from typing import Final

from traceml_daemon.triage.endings import STEP, SUSPECT
from traceml_daemon.triage.lines import Line
from traceml_daemon.triage.observations import Raised

_WINDOW_LINES: Final = 400
_MIN_STEPS: Final = 3
"""A rank that fails does not keep its peers from ending the step that they are in."""


class Aftermath:
    """Counts the steps in the lines behind the exceptions of one log."""

    __slots__ = ("_num_left", "_num_steps", "_raised")

    def __init__(self) -> None:
        self._raised: list[Raised] = []
        self._num_left = self._num_steps = 0

    @property
    def is_open(self) -> bool:
        return self._num_left > 0

    def begin(self, raised: Raised) -> None:
        self._raised.append(raised)
        self._num_left, self._num_steps = _WINDOW_LINES, 0

    def take(self, line: Line) -> None:
        self._num_left -= 1
        if line.text[:2] != "  " and STEP.search(line.text) and not SUSPECT.search(line.text):
            self._num_steps += 1
        if self._num_steps == _MIN_STEPS:
            for raised in self._raised:
                raised.went_on_at = line.number
        if self._num_left == 0 or self._num_steps == _MIN_STEPS:
            self._raised, self._num_left = [], 0
