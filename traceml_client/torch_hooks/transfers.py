"""Times the transfer of a batch to the accelerator: `Tensor.to` and `Tensor.cuda` between the batch and the forward.

What moves a whole batch (modules, packed sequences, the batch objects of libraries) calls these for each tensor. Times
are the host's: a transfer that does not block is the time to issue it.
"""

from __future__ import annotations

from typing import Any

import torch

from traceml_client.phases import H2D, NOT_OURS
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.import_watch import hide_frame
from traceml_client.torch_hooks.patching import Patches, is_tracing, keep_uncompiled

_KIND = "the transfer hook"
_NAMES = ("to", "cuda")


def has_accelerator() -> bool:
    """Whether this torch was built for one. Does not start its runtime."""
    accelerator = getattr(torch, "accelerator", None)
    return accelerator is not None and accelerator.current_accelerator() is not None


def install_transfers(measuring: Measuring, patches: Patches) -> None:
    for name in _NAMES:
        patches.replace(torch.Tensor, name, _timed_transfer(getattr(torch.Tensor, name), measuring))


def _timed_transfer(function: Any, measuring: Measuring) -> Any:
    clock = measuring.clock

    def transfer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() or not clock.is_moving_batch():
            return function(self, *args, **kwargs)
        before = NOT_OURS
        try:
            before = clock.enter(H2D)
        except Exception as error:  # noqa: BLE001 - the boundary
            measuring.fault(_KIND, error)
        try:
            result = function(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            _end(measuring, before, is_transfer=False)
            raise
        _end(measuring, before, is_transfer=self.device.type == "cpu" and result.device.type != "cpu")
        return result

    transfer.__name__ = transfer.__qualname__ = function.__name__
    transfer.__doc__ = function.__doc__
    keep_uncompiled(transfer)
    return transfer


def _end(measuring: Measuring, before: int, *, is_transfer: bool) -> None:
    try:
        if before != NOT_OURS:
            (measuring.clock.leave if is_transfer else measuring.clock.leave_unclaimed)(before)
    except Exception as error:  # noqa: BLE001 - the boundary
        measuring.fault(_KIND, error)
