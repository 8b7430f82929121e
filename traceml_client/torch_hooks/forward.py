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

from traceml_client.phases import BACKWARD, FORWARD, NOT_OURS
from traceml_client.steps import Measuring
from traceml_client.torch_hooks import models
from traceml_client.torch_hooks.import_watch import hide_frame
from traceml_client.torch_hooks.optimizers import OptimizerHooks
from traceml_client.torch_hooks.patching import Patches, is_tracing, keep_uncompiled
from traceml_client.torch_hooks.phase_wrap import leave_after_error

_KIND = "the forward hook"
_PAUSES = (0, 0, 8, 64)
"""Steps to wait after each search in a row that found nothing new; after the last there are no more. The first two are
not held against the loop: they may come before its model is wrapped."""
_MAX_FRUITLESS = len(_PAUSES)

_roots: dict[int, weakref.ref[Any]] = {}
_measuring: Measuring | None = None
_clock: Any = None
"""That of `_measuring`. There are no roots where there is none; what another thread does meanwhile is not reported."""
_is_grad_enabled = torch.is_grad_enabled


def call_root(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands as `__call__` in the class of a root."""
    if is_tracing() or id(self) not in _roots:
        return Module.__call__(self, *args, **kwargs)
    before = NOT_OURS
    try:
        if _is_grad_enabled():
            if _clock.phase != BACKWARD:  # what is recomputed there is part of it
                before = _clock.enter(FORWARD)
        else:
            _clock.see_no_grad(is_eval=not self.training)
    except Exception as error:  # noqa: BLE001 - the boundary
        _report(error)
    try:
        result = Module.__call__(self, *args, **kwargs)
    except BaseException as error:
        hide_frame(error)
        if _measuring is not None:
            leave_after_error(_measuring, before, error)
        raise
    try:
        if before != NOT_OURS:
            _clock.leave(before)
    except Exception as error:  # noqa: BLE001 - the boundary
        _report(error)
    return result


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a class with a `__call__` of its own. Refers to functions of modules only: they can be pickled."""

    def call_own_root(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() or not is_root(self):
            return original(self, *args, **kwargs)
        before = enter_root(self)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            leave_root(before, error)
            raise
        leave_root(before, None)
        return result

    keep_uncompiled(call_own_root)
    return call_own_root


def is_root(module: Any) -> bool:
    return id(module) in _roots


def enter_root(module: Any) -> int:
    """A root is called: what `leave_root` needs."""
    try:
        if _measuring is not None and not _is_grad_enabled():
            _measuring.clock.see_no_grad(is_eval=not module.training)
        elif _measuring is not None and _measuring.clock.phase != BACKWARD:
            return _measuring.clock.enter(FORWARD)
    except Exception as error:  # noqa: BLE001 - the boundary
        _report(error)
    return NOT_OURS


def leave_root(before: int, raised: BaseException | None) -> None:
    """Its call ended."""
    try:
        if before != NOT_OURS and _measuring is not None:
            if raised is None:
                _measuring.clock.leave(before)
            else:
                leave_after_error(_measuring, before, raised)
    except Exception as error:  # noqa: BLE001 - the boundary
        _report(error)


def _report(error: BaseException) -> None:
    if _measuring is not None:
        _measuring.fault(_KIND, error)


class RootWatch:
    """Looks for the roots when a step has no forward, less and less often where there are none."""

    def __init__(self, measuring: Measuring, optimizers: OptimizerHooks, patches: Patches) -> None:
        global _measuring, _clock
        _measuring = measuring
        self._clock = _clock = measuring.clock
        self._optimizers = optimizers
        self._patches = patches
        self._num_fruitless = 0
        self._next_step = 1
        patches.on_undo(_forget_all)

    def find_models(self) -> None:
        """Search if this step has no forward so far, unless the last searches found nothing new.

        First below the roots that are known and were not called, then everywhere, which takes tens of milliseconds: the
        step is marked.
        """
        step = self._clock.step
        if self._clock.spent[FORWARD] or step < self._next_step or self._num_fruitless >= _MAX_FRUITLESS:
            return
        self._clock.see_disturbance()
        known = [root for ref in list(_roots.values()) if (root := ref()) is not None]
        if (step > 1 and self._watch(models.children_of(known))) or self._watch(self._search()):
            self._num_fruitless = 0
        else:
            self._next_step = step + _PAUSES[self._num_fruitless]
            self._num_fruitless += 1

    def _search(self) -> list[Any]:
        modules, optimizers = models.find_modules_and_optimizers()
        self._clock.notes.has_optimizer = bool(optimizers)
        for optimizer in optimizers:
            self._optimizers.adopt_step(optimizer, self._patches)
        roots = models.roots_of(modules, optimizers)
        if models.is_on_accelerator(roots):
            self._clock.notes.see_accelerator()
        return roots

    def _watch(self, found: Iterable[Any]) -> bool:
        """Time these; whether there is a new one among them."""
        is_any_new = False
        for root in found:
            key = id(root)
            if key not in _roots:
                _roots[key] = weakref.ref(root, functools.partial(_forget, key))
                self._wrap(type(root))
                is_any_new = True
        return is_any_new

    def _wrap(self, kind: type) -> None:
        current: Any = kind.__call__
        if current is Module.__call__:
            self._patches.replace(kind, "__call__", call_root)
        elif current is not call_root and current.__code__ is not _OWN_CODE:
            self._patches.replace(kind, "__call__", _calling(current))


def _forget(key: int, _ref: object) -> None:
    _roots.pop(key, None)


def _forget_all() -> None:
    global _measuring, _clock
    _measuring = _clock = None
    _roots.clear()


keep_uncompiled(call_root)
for _function in (is_root, enter_root, leave_root):
    keep_uncompiled(_function, with_callees=True)
_OWN_CODE = _calling(call_root).__code__
