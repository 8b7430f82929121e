"""Our own lines on standard error, behind training's and never in its way."""

from __future__ import annotations

from traceml_launch.outcome import PREFIX, FinalLine, render
from traceml_launch.output.terminal import TerminalWriter

MAX_PROBLEMS = 20
"""Beyond it they are only counted: the same trouble on a thousand ranks is one trouble."""


class Console:
    """Sentences for the user. `say` is silenced by --quiet, `problem` is not; each problem is said once."""

    def __init__(self, terminal: TerminalWriter, *, is_quiet: bool, has_color: bool) -> None:
        self._terminal = terminal
        self._is_quiet = is_quiet
        self._has_color = has_color
        self._problems: set[str] = set()

    def say(self, sentence: str) -> None:
        if not self._is_quiet:
            self._write(FinalLine(f"{PREFIX} {sentence}"))

    def problem(self, sentence: str) -> None:
        if sentence not in self._problems:
            self._problems.add(sentence)
            if len(self._problems) <= MAX_PROBLEMS:
                self._write(FinalLine(f"{PREFIX} {sentence}", "bad"))

    def finish(self, lines: list[FinalLine]) -> None:
        """The last lines of the command."""
        num_untold = len(self._problems) - MAX_PROBLEMS
        if num_untold > 0:
            self._write(FinalLine(f"{PREFIX} {num_untold} further problems of TraceML itself were not shown"))
        for line in lines:
            self._write(line)

    def _write(self, line: FinalLine) -> None:
        self._terminal.write(render(line, has_color=self._has_color).encode(errors="replace") + b"\n")
