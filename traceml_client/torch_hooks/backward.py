"""Times backwards: `Tensor.backward` calls `torch.autograd.backward`, which is wrapped, as `torch.autograd.grad` is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from traceml_client.phases import BACKWARD, FORWARD
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.patching import Patches
from traceml_client.torch_hooks.phase_wrap import timed

_KIND = "the backward hook"


def install_backward(measuring: Measuring, find_models: Callable[[], None], patches: Patches) -> None:
    """Wrap both. A backward of a step that has seen no forward looks for the models."""
    clock = measuring.clock

    def begin(_tensors: Any) -> int:
        if not clock.spent[FORWARD]:
            find_models()
        if clock.step == 1:
            clock.notes.see_backward()
        return clock.enter(BACKWARD)

    def after() -> None:
        if clock.has_stepped_inside:
            clock.end_backward()

    for name in ("backward", "grad"):
        function = getattr(torch.autograd, name)
        patches.replace(torch.autograd, name, timed(function, measuring, _KIND, begin=begin, after=after))
