"""Times backwards: `Tensor.backward` calls `torch.autograd.backward`, which is wrapped, as `torch.autograd.grad` is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from traceml_client.phases import BACKWARD, FORWARD, NOT_OURS
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.import_watch import hide_frame
from traceml_client.torch_hooks.own_gradients import OwnGradients
from traceml_client.torch_hooks.patching import Patches, is_tracing, keep_uncompiled
from traceml_client.torch_hooks.phase_wrap import leave_after_error

_KIND = "the backward hook"
_codes: set[CodeType] = set()
"""Of the wrappers."""


def install_backward(measuring: Measuring, find_models: Callable[[], None], patches: Patches) -> None:
    """Wrap both. A backward of a step that has seen no forward looks for the models."""
    for name in ("backward", "grad"):
        wrapper: Any = _timed_backward(getattr(torch.autograd, name), measuring, find_models)
        _codes.add(wrapper.__code__)
        patches.replace(torch.autograd, name, wrapper)


def _timed_backward(
    function: Callable[..., Any], measuring: Measuring, find_models: Callable[[], None]
) -> Callable[..., Any]:
    """As `phase_wrap.timed`, with a call less: every step comes here."""
    clock, fault = measuring.clock, measuring.fault
    world = (own_gradients := OwnGradients(measuring)).world

    @functools.wraps(function)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return function(*args, **kwargs)
        before, watch = NOT_OURS, None
        try:
            if not clock.spent[FORWARD] or clock.step == 1:
                find_models()
                clock.see_backward()
            watch = None if world._default_pg is None else own_gradients.watch(args[0] if args else None)
            before = clock.enter(BACKWARD)
        except Exception as error:  # noqa: BLE001 - the boundary
            fault(_KIND, error)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            leave_after_error(measuring, before, error)
            raise
        try:
            if before != NOT_OURS:
                clock.leave(before)
                if watch is not None:
                    own_gradients.end(watch)
                if clock.has_stepped_inside:
                    clock.end_backward()
        except Exception as error:  # noqa: BLE001 - the boundary
            fault(_KIND, error)
        return result

    keep_uncompiled(backward)
    return backward


def is_backward_running() -> bool:
    """Whether any thread is inside one, by its stack; the engine runs hooks in threads of its own too."""
    for frame in sys._current_frames().values():
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code in _codes:
                return True
            caller = caller.f_back
    return False
