"""Wait for a condition, not for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from traceml_client.protocol.errors import StoreError

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05


async def until(is_true: Callable[[], bool], reason: str, *, within_s: float = 10.0) -> None:
    """Look again and again, with growing pauses, until the condition holds; in a file not there yet it does not.

    Raises:
        TimeoutError: it did not; the text is the reason, in the form "rank 0 is active".
    """
    deadline_s = time.monotonic() + within_s
    pause_s = FIRST_PAUSE_S
    while not _holds(is_true):
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"not within {within_s:g} s: {reason}")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _holds(is_true: Callable[[], bool]) -> bool:
    try:
        return is_true()
    except (FileNotFoundError, StoreError):
        return False
