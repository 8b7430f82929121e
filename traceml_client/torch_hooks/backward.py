"""Times backwards: `Tensor.backward` calls `torch.autograd.backward`, which is wrapped, as `torch.autograd.grad` is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from traceml_client.step_clock import FORWARD
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.optimizers import OptimizerHooks
from traceml_client.torch_hooks.patching import Patches, Timing, timed


def install_backward(
    measuring: Measuring, optimizers: OptimizerHooks, find_models: Callable[[], None], patches: Patches
) -> None:
    """Wrap both. A backward of a step that has seen no forward looks for the models (`find_models`)."""
    clock = measuring.clock

    def begin(*_args: Any) -> int:
        if clock.is_in_optimizer and not optimizers.is_inside_step():
            clock.abandon_optimizer()
        if not clock.spent[FORWARD]:
            find_models()
        return clock.enter_backward()

    timing = Timing(measuring, "the backward hook", begin, clock.leave_backward)
    patches.replace(torch.autograd, "backward", timed(torch.autograd.backward, timing))
    patches.replace(torch.autograd, "grad", timed(torch.autograd.grad, timing))
