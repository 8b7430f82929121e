"""Sets every hook on an imported torch."""

from __future__ import annotations

import torch

from traceml_client.phase_clock import PhaseClock
from traceml_client.phases import NOT_OURS
from traceml_client.step_clock import StepClock
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.backward import install_backward
from traceml_client.torch_hooks.forward import RootWatch
from traceml_client.torch_hooks.loading import install_loading
from traceml_client.torch_hooks.optimizer_table import OptimizerTable
from traceml_client.torch_hooks.optimizers import OptimizerHooks, call_before_first_zero_grad
from traceml_client.torch_hooks.patching import Patches, keep_uncompiled
from traceml_client.torch_hooks.phase_wrap import timed
from traceml_client.torch_hooks.transfers import has_accelerator, install_transfers


def install(measuring: Measuring, table: OptimizerTable) -> Patches:
    """Set them; what is returned takes them off again."""
    patches = Patches()
    optimizers = OptimizerHooks(measuring, table)
    roots = RootWatch(measuring, optimizers, patches)
    optimizers.install(patches)
    call_before_first_zero_grad(roots.find_models, measuring, patches)
    install_backward(measuring, roots.find_models, patches)
    install_loading(measuring, roots, patches)
    if has_accelerator():
        install_transfers(measuring, patches)
    _install_saving(measuring, patches)
    for method in [*vars(PhaseClock).values(), *vars(StepClock).values()]:
        keep_uncompiled(method, with_callees=True)
    return patches


def _install_saving(measuring: Measuring, patches: Patches) -> None:
    """`torch.save` marks the step as unusual; its time is nobody's phase."""

    def begin(_thing: object) -> int:
        measuring.clock.see_checkpoint()
        return NOT_OURS

    save = timed(torch.save, measuring, "the checkpoint hook", begin)
    for module in (torch, torch.serialization):
        patches.replace(module, "save", save)
