"""Whether work went on behind an error, which a job that caught it does. Pure."""

from __future__ import annotations

import re
from typing import Final

from traceml_daemon.triage.endings import STEP, is_suspect
from traceml_daemon.triage.lines import Line
from traceml_daemon.triage.observations import Hit, Raised

_BAR: Final = re.compile(r" *\d+%\|")
_WINDOW_LINES: Final = 400
_MIN_STEPS: Final = 3
"""A rank that fails does not keep its peers from ending the step that they are in."""


class Aftermath:
    """Counts the steps in the lines behind the errors of one log."""

    __slots__ = ("_errors", "_num_left", "_num_steps")

    def __init__(self) -> None:
        self._errors: list[Raised | Hit] = []
        self._num_left = self._num_steps = 0

    @property
    def is_open(self) -> bool:
        return self._num_left > 0

    def begin(self, error: Raised | Hit) -> None:
        self._errors.append(error)
        self._num_left, self._num_steps = _WINDOW_LINES, 0

    def take(self, line: Line) -> None:
        self._num_left -= 1
        is_code = line.text[:2] == "  " and not _BAR.match(line.text)
        if not is_code and STEP.search(line.text) and not is_suspect(line.text):
            self._num_steps += 1
        if self._num_steps == _MIN_STEPS:
            for error in self._errors:
                error.went_on_at = line.number
        if self._num_left == 0 or self._num_steps == _MIN_STEPS:
            self._errors, self._num_left = [], 0
