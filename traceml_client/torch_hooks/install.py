"""Sets every hook on an imported torch."""

from __future__ import annotations

from collections.abc import Callable

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
    """Set them; what is returned takes them off again.

    Each by itself: what a version of torch does not have is reported and not measured, the rest is.
    """
    patches = Patches()
    optimizers = OptimizerHooks(measuring, table)
    roots = RootWatch(measuring, optimizers, patches)
    hooks: dict[str, Callable[[], None]] = {
        "optimizers": lambda: optimizers.install(patches),
        "gradient scalers": lambda: optimizers.install_scaler(patches),
        "the first step": lambda: call_before_first_zero_grad(roots.find_models, measuring, patches),
        "backwards": lambda: install_backward(measuring, roots.find_models, patches),
        "data loaders": lambda: install_loading(measuring, roots, patches),
        "transfers": lambda: install_transfers(measuring, patches) if has_accelerator() else None,
        "checkpoints": lambda: _install_saving(measuring, patches),
        "compiled code": _keep_clock_uncompiled,
    }
    for kind, hook in hooks.items():
        try:
            hook()
        except Exception as error:  # noqa: BLE001 - the boundary
            measuring.fault(f"the hook on {kind}", error)
    return patches


def _keep_clock_uncompiled() -> None:
    for method in [*vars(PhaseClock).values(), *vars(StepClock).values()]:
        keep_uncompiled(method, with_callees=True)


def _install_saving(measuring: Measuring, patches: Patches) -> None:
    """`torch.save` marks the step as unusual; its time is nobody's phase."""

    def begin(_thing: object) -> int:
        measuring.clock.see_checkpoint()
        return NOT_OURS

    save = timed(torch.save, measuring, "the checkpoint hook", begin)
    for module in (torch, torch.serialization):
        patches.replace(module, "save", save)
