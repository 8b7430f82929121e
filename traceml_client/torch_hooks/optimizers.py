"""Where steps end: optimizers that step, and gradient scalers that hold one back.

torch's global hooks fire around every `step()` of every optimizer class, once for each class on the way where one calls
`super().step()`. Whether a hook is the outermost of its step is not counted (an exception in between would leave the
count wrong for ever) but read off the stack, and only where it can matter.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import CodeType, FrameType, MethodType
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from traceml_client.steps import Measuring
from traceml_client.torch_hooks.import_watch import hide_frame
from traceml_client.torch_hooks.optimizer_table import OptimizerTable
from traceml_client.torch_hooks.patching import Patches, is_tracing, keep_uncompiled

_KIND = "the optimizer hooks"


class OptimizerHooks:
    """Tells the step clock of every optimizer's outermost `step()`."""

    def __init__(self, measuring: Measuring, table: OptimizerTable) -> None:
        self._clock = measuring.clock
        self._fault = measuring.fault
        self._table = table
        self._is_scaling = False
        self._has_stepped = False
        self._is_nesting = False
        self._step_codes: set[CodeType] = {_hooked_step_code()}

    def install(self, patches: Patches) -> None:
        for hook in (self.before_step, self.after_step):
            keep_uncompiled(hook, with_callees=True)
        patches.on_undo(register_optimizer_step_pre_hook(self.before_step).remove)
        patches.on_undo(register_optimizer_step_post_hook(self.after_step).remove)
        patches.replace(GradScaler, "step", self._scaled(GradScaler.step))

    def before_step(self, optimizer: Any, _args: object = None, _kwargs: object = None) -> None:
        """Has the form of torch's hook."""
        try:
            clock = self._clock
            if self._is_scaling:
                self._has_stepped = True
            elif not clock.stepping or not self.is_inside_step(num_own=1):
                key = id(optimizer)
                if key not in self._table.alive:
                    self._table.add(optimizer)
                clock.begin_optimizer(key)
                self._is_nesting = False
            else:
                self._is_nesting = True
        except Exception as error:  # noqa: BLE001 - the boundary
            self._fault(_KIND, error)

    def after_step(self, optimizer: Any, _args: object = None, _kwargs: object = None) -> None:
        """Has the form of torch's hook."""
        try:
            if not self._is_scaling and not (self._is_nesting and self.is_inside_step(num_own=1)):
                self._clock.end_optimizer(id(optimizer))
        except Exception as error:  # noqa: BLE001 - the boundary
            self._fault(_KIND, error)

    def is_inside_step(self, *, num_own: int = 0) -> bool:
        """Whether this thread is inside an optimizer's `step()`, beyond `num_own` calls of it that the caller knows."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code in self._step_codes:
                num_own -= 1
                if num_own < 0:
                    return True
            frame = frame.f_back
        return False

    def adopt_replaced_step(self, optimizer: Any) -> None:
        """An instance whose `step` a script replaced has no hooks of torch: wrap the replacement."""
        step = vars(optimizer).get("step")
        if step is None or getattr(step, "hooked", False) or getattr(step, "__code__", None) in self._step_codes:
            return

        function = step.__func__ if isinstance(step, MethodType) else step
        reference = weakref.ref(optimizer)

        def replaced_step(*args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                return function(*args, **kwargs)
            self.before_step(reference())
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            self.after_step(reference())
            return result

        keep_uncompiled(replaced_step)
        self._step_codes.add(replaced_step.__code__)
        functools.update_wrapper(replaced_step, function)
        optimizer.step = MethodType(replaced_step, step.__self__) if isinstance(step, MethodType) else replaced_step

    def _scaled(self, step: Any) -> Any:
        @functools.wraps(step)
        def scaled_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if is_tracing() or self._is_scaling or self._clock.stepping or not scaler.is_enabled():
                return step(scaler, optimizer, *args, **kwargs)
            self._has_stepped = False
            self.before_step(optimizer)
            self._is_scaling = True
            try:
                result = step(scaler, optimizer, *args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                self._is_scaling = False
            self._after_scaled(scaler, optimizer)
            return result

        keep_uncompiled(scaled_step)
        return scaled_step

    def _after_scaled(self, scaler: Any, optimizer: Any) -> None:
        """A fused optimizer skips inside its kernel. An accelerator is not asked: it would have to be waited for."""
        try:
            is_skipped = not self._has_stepped or any(
                found.item() != 0
                for found in scaler._found_inf_per_device(optimizer).values()
                if found.device.type == "cpu"
            )
            (self._clock.end_skipped if is_skipped else self._clock.end_optimizer)(id(optimizer))
        except Exception as error:  # noqa: BLE001 - the boundary
            self._fault(_KIND, error)


def _hooked_step_code() -> CodeType:
    """The code of the function that torch puts around every optimizer class's `step`: one code, many functions."""

    def step(_self: Any) -> None:
        pass

    code: CodeType = Optimizer.profile_hook_step(step).__code__
    return code
