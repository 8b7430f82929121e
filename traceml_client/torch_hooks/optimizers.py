"""Where steps end: optimizers that step, and gradient scalers that hold one back.

torch's global hooks fire around every `step()` of every optimizer class, once for each class on the way where one calls
`super().step()`. Whether a hook is the outermost of its step is not counted (an exception in between would leave the
count wrong for ever) but read off the stack, and only where it can matter.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType, MethodType
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from traceml_client.phases import BACKWARD, OPTIMIZER, RESIDUAL
from traceml_client.protocol.columns import IS_SKIPPED
from traceml_client.step_clock import NO_OPTIMIZER
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.backward import is_backward_running
from traceml_client.torch_hooks.import_watch import hide_frame
from traceml_client.torch_hooks.optimizer_table import OptimizerTable
from traceml_client.torch_hooks.patching import Patches, is_tracing, keep_uncompiled

_KIND = "the optimizer hooks"

# In place of the optimizer that steps, while the end of a `step()` inside its own is not to be taken for its end.
_NESTED = -3
"""A subclass calls `super().step()`, or one optimizer wraps another."""
_SCALED = -4
"""A gradient scaler decides whether it steps at all."""


_STATE_MAKER = "_init_optim_state"
"""The function of `torch.distributed.checkpoint` that steps a fresh optimizer, by no learning rate, only to give it a
state that can be saved or loaded into: no step of training."""
_STATE_ARGUMENTS = {"closure": None}
"""What it steps with; hardly anything else does."""


class OptimizerHooks:
    """Tells the step clock of every optimizer's outermost `step()`."""

    def __init__(self, measuring: Measuring, table: OptimizerTable) -> None:
        self._clock = measuring.clock
        self._fault = measuring.fault
        self._table = table
        self._known = table.alive
        self._has_stepped = False
        self._outermost = NO_OPTIMIZER
        self._step_codes: set[CodeType] = {_hooked_step_code()}

    def install(self, patches: Patches) -> None:
        """Steps."""
        for hook in (self.before_step, self.after_step):
            keep_uncompiled(hook, with_callees=True)
        patches.on_undo(register_optimizer_step_pre_hook(self.before_step).remove)
        patches.on_undo(register_optimizer_step_post_hook(self.after_step).remove)

    def install_scaler(self, patches: Patches) -> None:
        """Skipped steps."""
        scaler = torch.amp.GradScaler
        patches.replace(scaler, "step", self._scaled(scaler.step))

    def before_step(self, optimizer: Any, _args: object = None, kwargs: Any = None) -> None:
        """Has the form of torch's hook. The regular case is that of `StepClock.begin_optimizer`, without the call."""
        try:
            if kwargs and kwargs == _STATE_ARGUMENTS and _is_for_state(sys._getframe(1)):
                return
            key, clock = id(optimizer), self._clock
            if key == clock.alone and clock.phase == RESIDUAL and not clock.stepping:
                clock.stepping = key
                now_ns = clock.now_ns
                clock.since = now_ns()
                clock.phase = clock.phase_view[0] = OPTIMIZER
            elif (key in self._known and not clock.stepping) or self._may_begin(optimizer):
                if clock.phase == BACKWARD and not clock.has_stepped_inside and not is_backward_running():
                    clock.phase = RESIDUAL  # two threads have left theirs crosswise
                clock.begin_optimizer(key)
        except Exception as error:  # noqa: BLE001 - the boundary
            self._fault(_KIND, error)

    def after_step(self, optimizer: Any, _args: object = None, _kwargs: object = None) -> None:
        """Has the form of torch's hook."""
        try:
            key, clock = id(optimizer), self._clock
            if key == clock.stepping:
                if key == clock.alone:
                    clock.end_alone()
                else:
                    clock.end_optimizer(key)
            elif clock.stepping == _NESTED and self._num_steps_on(sys._getframe(1)) == 1:
                clock.stepping = self._outermost
                clock.end_optimizer(self._outermost)
        except Exception as error:  # noqa: BLE001 - the boundary
            self._fault(_KIND, error)

    def _may_begin(self, optimizer: Any) -> bool:
        """Whether a step is the outermost one. Called where one has begun and not ended, or for a new optimizer."""
        clock = self._clock
        if clock.stepping == _SCALED:
            self._has_stepped = True
            return False
        if clock.stepping:
            if self._num_steps_on(sys._getframe(1)) > 1:
                if clock.stepping != _NESTED:
                    self._outermost, clock.stepping = clock.stepping, _NESTED
                return False
            if self._is_stepping_elsewhere():
                return False
        if id(optimizer) not in self._known:
            if _is_for_state(sys._getframe(1)):
                return False
            self._table.add(optimizer)
        return True

    def _is_stepping_elsewhere(self) -> bool:
        """Another thread is inside a `step()`. If none is, an exception has left the one that has not ended."""
        mine = get_ident()
        return any(self._num_steps_on(frame) for ident, frame in sys._current_frames().items() if ident != mine)

    def _num_steps_on(self, frame: FrameType | None) -> int:
        """How many calls of an optimizer's `step()` are on a stack, the innermost included."""
        number = 0
        while frame is not None:
            number += frame.f_code in self._step_codes
            frame = frame.f_back
        return number

    def adopt_step(self, optimizer: Any, patches: Patches) -> None:
        """Wrap a `step` that has no hooks of torch: one that a script put into an instance, or that of a class whose
        `__init__` does not call torch's."""
        step = vars(optimizer).get("step")
        if step is None:
            step = type(optimizer).step
            if not self._is_hooked(step):
                patches.replace(type(optimizer), "step", self._hooked(step, lambda arguments: arguments[0]))
        elif not self._is_hooked(step):
            function = step.__func__ if isinstance(step, MethodType) else step
            reference = weakref.ref(optimizer)
            hooked = self._hooked(function, lambda _arguments: reference())
            optimizer.step = MethodType(hooked, step.__self__) if isinstance(step, MethodType) else hooked

    def _is_hooked(self, step: Any) -> bool:
        return getattr(step, "hooked", False) or getattr(step, "__code__", None) in self._step_codes

    def _hooked(self, function: Any, optimizer_of: Callable[[tuple[Any, ...]], Any]) -> Any:
        @functools.wraps(function)
        def hooked_step(*args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                return function(*args, **kwargs)
            optimizer = optimizer_of(args)
            self.before_step(optimizer)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            self.after_step(optimizer)
            return result

        wrapper: Any = hooked_step
        self._step_codes.add(wrapper.__code__)
        keep_uncompiled(wrapper)
        return wrapper

    def _scaled(self, step: Any) -> Any:
        @functools.wraps(step)
        def scaled_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            clock = self._clock
            if is_tracing() or clock.stepping == _SCALED or not scaler.is_enabled():
                return step(scaler, optimizer, *args, **kwargs)
            self._has_stepped = False
            is_inner = bool(clock.stepping) and self._num_steps_on(sys._getframe(1)) > 0
            if not is_inner:
                self.before_step(optimizer)
            outer = clock.stepping
            is_counted = is_inner or outer == id(optimizer)
            if is_counted:
                clock.stepping = _SCALED
            try:
                result = step(scaler, optimizer, *args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                if is_counted:
                    clock.stepping = outer
            self._after_scaled(scaler, optimizer, is_inner=is_inner)
            return result

        keep_uncompiled(scaled_step)
        return scaled_step

    def _after_scaled(self, scaler: Any, optimizer: Any, *, is_inner: bool) -> None:
        """A fused optimizer skips inside its kernel. An accelerator is not asked: it would have to be waited for.

        Inside the `step()` of a wrapper it is that one's step which is skipped, and has yet to end.
        """
        try:
            is_skipped = not self._has_stepped or any(
                found.item() != 0
                for found in scaler._found_inf_per_device(optimizer).values()
                if found.device.type == "cpu"
            )
            if is_inner:
                self._clock.flags |= IS_SKIPPED * is_skipped
            else:
                (self._clock.end_skipped if is_skipped else self._clock.end_optimizer)(id(optimizer))
        except Exception as error:  # noqa: BLE001 - the boundary
            self._fault(_KIND, error)


def call_before_first_zero_grad(action: Callable[[], None], measuring: Measuring, patches: Patches) -> None:
    """Where no loader announces the first step, a loop may begin it by clearing gradients. Once, then this is gone."""
    zero_grad = Optimizer.zero_grad

    @functools.wraps(zero_grad)
    def first_zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_tracing():
            restored.undo()
            try:
                action()
            except Exception as error:  # noqa: BLE001 - the boundary
                measuring.fault(_KIND, error)
        return zero_grad(self, *args, **kwargs)

    restored = Patches()
    restored.replace(Optimizer, "zero_grad", first_zero_grad)
    patches.on_undo(restored.undo)
    keep_uncompiled(first_zero_grad)


def _is_for_state(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == _STATE_MAKER:
            return True
        frame = frame.f_back
    return False


def _hooked_step_code() -> CodeType:
    """The code of the function that torch puts around every optimizer class's `step`: one code, many functions."""

    def step(_self: Any) -> None:
        pass

    code: CodeType = Optimizer.profile_hook_step(step).__code__
    return code
