"""Waiting for one thing as long as another has not happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def unless(waited: Awaitable[_T], *events: asyncio.Event, timeout_s: float | None = None) -> _T | None:
    """The result of `waited`; null where one of the events happens or the time is over before, and it is cancelled."""
    task = asyncio.ensure_future(waited)
    tasks: list[asyncio.Future[Any]] = [task, *(asyncio.ensure_future(event.wait()) for event in events)]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
