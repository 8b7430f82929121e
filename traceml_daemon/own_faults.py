"""Errors of our own that nobody may feel: written to the diagnostics in full, counted, and said in the reports."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

AFTER_COMMIT: Final = "what a commit is told to"

_log = logging.getLogger("traceml_daemon")


class OwnFaults:
    """Of one place, where an error would stop what others rely on."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._count = 0
        self._first = ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """One with their number and the first of them; empty while there are none."""
        text = f"a fault of TraceML itself, {self._count}x: {self._where}: {self._first}"
        return (text,) if self._count else ()

    def count(self, error: BaseException) -> None:
        self._note(str(error) or type(error).__name__)
        _log.error("%s", self._where, exc_info=error)

    def count_of_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """As asyncio calls an exception handler; what it does without one is done as well."""
        self._note(str(context.get("exception") or context.get("message")))
        loop.default_exception_handler(context)

    def _note(self, text: str) -> None:
        self._count += 1
        self._first = self._first or text
