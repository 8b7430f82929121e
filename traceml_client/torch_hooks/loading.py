"""Times the waiting for batches: the iterators of torch's DataLoader, whatever the data set and the workers.

A plain iterator or generator is not measured: what it does between two batches cannot be told from the loop's own code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader

from traceml_client.phases import NOT_OURS
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.forward import RootWatch
from traceml_client.torch_hooks.patching import Patches
from traceml_client.torch_hooks.phase_wrap import timed

_KIND = "the data loader hook"


def install_loading(measuring: Measuring, roots: RootWatch, patches: Patches) -> None:
    """Wrap `next()` on a loader's iterator, and `iter()` on the loader, which starts the workers.

    Without gradients it is a validation pass that waits, which is no part of training's input. A loader is known by its
    data set: it makes a new iterator each epoch.
    """
    clock = measuring.clock
    is_grad_enabled = torch.is_grad_enabled

    def begin_next(iterator: Any) -> int:
        if not is_grad_enabled():
            return NOT_OURS
        if clock.step == 1:
            roots.find_models()
        return clock.enter_input(id(getattr(iterator, "_dataset", iterator)))

    def begin_iter(loader: Any) -> int:
        return clock.enter_input(id(loader.dataset)) if is_grad_enabled() else NOT_OURS

    batches = dataloader._BaseDataLoaderIter
    patches.replace(batches, "__next__", timed(batches.__next__, measuring, _KIND, begin_next))
    patches.replace(DataLoader, "__iter__", timed(DataLoader.__iter__, measuring, _KIND, begin_iter))
