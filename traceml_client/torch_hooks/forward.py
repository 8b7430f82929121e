"""Times the calls of the root modules, by their class's `__call__` and an identity test.

Nothing is left on a module: a saved or copied model knows nothing of this. The function that stands in a class is a
module-level one, so that a class which is pickled by value pickles it by name. Under the compiler it is the original.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import Module

from traceml_client.step_clock import FORWARD, NOT_OURS
from traceml_client.steps import Measuring
from traceml_client.torch_hooks import models
from traceml_client.torch_hooks.import_watch import hide_frame
from traceml_client.torch_hooks.optimizers import OptimizerHooks
from traceml_client.torch_hooks.patching import Patches, is_tracing, keep_uncompiled

_KIND = "the forward hook"
_LAST_SEARCHED_STEP = 32
"""A loop in which no forward was seen by then has none that can be seen."""

_roots: dict[int, weakref.ref[Any]] = {}
_measuring: Measuring | None = None
_is_grad_enabled = torch.is_grad_enabled


def call_root(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands as `__call__` in the class of a root."""
    if is_tracing() or id(self) not in _roots:
        return Module.__call__(self, *args, **kwargs)
    try:
        return _timed_call(Module.__call__, self, args, kwargs)
    except BaseException as error:
        hide_frame(error)
        raise


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a class with a `__call__` of its own. Refers to functions of modules only: they can be pickled."""

    def call_own_root(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return original(self, *args, **kwargs)
        try:
            return _timed_call(original, self, args, kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    keep_uncompiled(call_own_root)
    return call_own_root


def _timed_call(original: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
    before = _begin(module) if id(module) in _roots else NOT_OURS
    try:
        result = original(module, *args, **kwargs)
    except BaseException as error:
        hide_frame(error)
        if before != NOT_OURS:
            _end(before, is_raising=True)
        raise
    if before != NOT_OURS:
        _end(before, is_raising=False)
    return result


def _begin(module: Any) -> int:
    measuring = _measuring
    if measuring is not None:
        try:
            if _is_grad_enabled():
                return measuring.clock.enter_forward()
            measuring.clock.see_no_grad(is_eval=not module.training)
        except Exception as error:  # noqa: BLE001 - the boundary
            measuring.fault(_KIND, error)
    return NOT_OURS


def _end(before: int, *, is_raising: bool) -> None:
    measuring = _measuring
    if measuring is not None:
        try:
            if is_raising:
                measuring.clock.leave_raising(before)
            else:
                measuring.clock.leave(before)
        except Exception as error:  # noqa: BLE001 - the boundary
            measuring.fault(_KIND, error)


class RootWatch:
    """Looks for the roots when a step has no forward, less and less often."""

    def __init__(self, measuring: Measuring, optimizers: OptimizerHooks, patches: Patches) -> None:
        global _measuring
        _measuring = measuring
        self._clock = measuring.clock
        self._optimizers = optimizers
        self._patches = patches
        self._num_searches = 0
        self._next_step = 1
        patches.on_undo(_forget_all)

    def find_models(self) -> None:
        """Search if it is due: twice in the first step (the model may be wrapped late), then in steps 2, 4, 8 ..."""
        step = self._clock.step
        if step < self._next_step or step > _LAST_SEARCHED_STEP:
            return
        self._num_searches += 1
        if self._num_searches > 1:
            self._next_step = 2 * step
        known = [root for ref in list(_roots.values()) if (root := ref()) is not None]
        modules, optimizers = models.find_modules_and_optimizers()
        self._clock.notes.has_optimizer = bool(optimizers)
        for optimizer in optimizers:
            self._optimizers.adopt_replaced_step(optimizer)
        found = models.roots_of(modules, optimizers)
        if step > 1 and not self._clock.spent[FORWARD]:
            found += models.children_of(known)
        self._watch(found)

    def _watch(self, found: Iterable[Any]) -> None:
        for root in found:
            key = id(root)
            if key not in _roots:
                _roots[key] = weakref.ref(root, functools.partial(_forget, key))
                self._wrap(type(root))

    def _wrap(self, kind: type) -> None:
        current: Any = kind.__call__
        if current is Module.__call__:
            self._patches.replace(kind, "__call__", call_root)
        elif current is not call_root and current.__code__ is not _OWN_CODE:
            self._patches.replace(kind, "__call__", _calling(current))


def _forget(key: int, _ref: object) -> None:
    _roots.pop(key, None)


def _forget_all() -> None:
    global _measuring
    _measuring = None
    _roots.clear()


keep_uncompiled(call_root)
keep_uncompiled(_timed_call)
keep_uncompiled(_begin, with_callees=True)
keep_uncompiled(_end, with_callees=True)
_OWN_CODE = _calling(call_root).__code__
