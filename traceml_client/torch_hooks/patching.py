"""Replaces attributes of torch and puts them back.

Every wrapper here in `torch_hooks` keeps three rules. It is a boundary: an error of ours is reported, and the wrapped
function runs as if nothing had happened. An error of the wrapped function goes on without a frame of ours in its
traceback. Where the compiler traces it, it is the wrapped function and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

is_tracing = torch.compiler.is_dynamo_compiling
"""A constant for the compiler: True where it traces."""

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


def keep_uncompiled(function: Any, *, with_callees: bool = False) -> None:
    """Tell the compiler to run this function as it is where it meets it as a frame, not to compile it.

    Otherwise a wrapper that is called between two compiled graphs would be compiled into its untimed form.
    """
    frames = torch._C._dynamo.eval_frame
    function = getattr(function, "__func__", function)
    if isinstance(function, FunctionType) and hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        rest = action.SKIP if with_callees else action.DEFAULT
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, rest))
