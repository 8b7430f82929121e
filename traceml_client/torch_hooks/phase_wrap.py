"""Wraps a function of torch whose run is a phase. See `patching` for the rules that a wrapper keeps.

`kind` says what failed, where something of ours raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from traceml_client.phases import NOT_OURS
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.import_watch import hide_frame
from traceml_client.torch_hooks.patching import is_tracing, keep_uncompiled


def timed(
    function: Callable[..., Any], measuring: Measuring, kind: str, begin: Callable[[Any], int]
) -> Callable[..., Any]:
    """Make the wrapper. `begin` gets the first argument: what `StepClock.leave` needs, or NOT_OURS, comes back."""
    clock, fault = measuring.clock, measuring.fault

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return function(*args, **kwargs)
        before = NOT_OURS
        try:
            before = begin(args[0] if args else None)
        except Exception as error:  # noqa: BLE001 - the boundary
            fault(kind, error)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            leave_after_error(measuring, before, error)
            raise
        try:
            if before != NOT_OURS:
                clock.leave(before)
        except Exception as error:  # noqa: BLE001 - the boundary
            fault(kind, error)
        return result

    keep_uncompiled(wrapper)
    return wrapper


def leave_after_error(measuring: Measuring, before: int, error: BaseException) -> None:
    """The wrapped function raised; the end of an iterator is no failure."""
    try:
        if isinstance(error, StopIteration) and before != NOT_OURS:
            measuring.clock.leave(before)
        elif before != NOT_OURS:
            measuring.clock.leave_raising(before)
    except Exception as own_error:  # noqa: BLE001 - the boundary
        measuring.fault("the end of a phase", own_error)
