"""Replaces attributes of torch and puts them back; times what a replaced function does as a phase.

A wrapper is a boundary: an error of the step clock is reported and the wrapped function runs as if nothing had
happened; an error of the wrapped function goes on without a frame of ours in its traceback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from traceml_client.step_clock import NOT_OURS
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.import_watch import hide_frame

is_tracing = torch.compiler.is_dynamo_compiling
"""A constant for the compiler: True where it traces a wrapper, which then is the wrapped function and nothing else."""

_MISSING = object()


class Patches:
    """What was replaced, to be undone in the reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Set an attribute of a class or module. Undone only if nobody has replaced ours by then."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, replacement)

        def undo() -> None:
            if vars(owner).get(name) is replacement:
                if before is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)

        self._undo.append(undo)

    def on_undo(self, action: Callable[[], None]) -> None:
        self._undo.append(action)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


class Timing:
    """How a wrapped function is a phase.

    Args:
        kind: what failed, where `begin` or `end` raises.
        begin: called with the positional arguments, returns what `end` needs, or NOT_OURS.
        end: called after an ordinary return.
    """

    __slots__ = ("begin", "clock", "end", "fault", "kind")

    def __init__(
        self, measuring: Measuring, kind: str, begin: Callable[..., int], end: Callable[[int], None] | None = None
    ) -> None:
        self.clock = measuring.clock
        self.fault = measuring.fault
        self.kind = kind
        self.begin = begin
        self.end = end or measuring.clock.leave

    def close_raising(self, before: int, error: BaseException) -> None:
        """The wrapped function raised; the end of an iterator is no failure."""
        try:
            if before != NOT_OURS:
                leave = self.clock.leave if isinstance(error, StopIteration) else self.clock.leave_raising
                leave(before)
        except Exception as own_error:  # noqa: BLE001 - the boundary
            self.fault(self.kind, own_error)


def timed(function: Callable[..., Any], timing: Timing) -> Callable[..., Any]:
    """Wrap a function of torch."""
    begin, end, fault, kind = timing.begin, timing.end, timing.fault, timing.kind

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return function(*args, **kwargs)
        before = NOT_OURS
        try:
            before = begin(*args)
        except Exception as error:  # noqa: BLE001 - the boundary
            fault(kind, error)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            timing.close_raising(before, error)
            raise
        if before != NOT_OURS:
            try:
                end(before)
            except Exception as error:  # noqa: BLE001 - the boundary
                fault(kind, error)
        return result

    keep_uncompiled(wrapper)
    return wrapper


def keep_uncompiled(function: Any, *, with_callees: bool = False) -> None:
    """Tell the compiler to run this function as it is where it meets it as a frame, not to compile it.

    Otherwise a wrapper that is called between two compiled graphs would be compiled into its untimed form.
    """
    frames = torch._C._dynamo.eval_frame
    code = getattr(function, "__code__", None)
    if isinstance(function, FunctionType) and code is not None and hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        rest = action.SKIP if with_callees else action.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, rest))
