"""Times the waiting for batches: the iterators of torch's DataLoader, whatever the data set and the workers.

A plain iterator or generator is not measured: what it does between two batches cannot be told from the loop's own code.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader, get_worker_info
from torch.utils.data._utils import fetch

from traceml_client.loader_times import TIMES
from traceml_client.phases import NOT_OURS
from traceml_client.steps import Measuring
from traceml_client.torch_hooks.forward import RootWatch
from traceml_client.torch_hooks.import_watch import hide_frame
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
        if is_grad_enabled() and loader.num_workers:
            TIMES.see_workers(loader.num_workers)
        return clock.enter_input(id(loader.dataset)) if is_grad_enabled() else NOT_OURS

    batches = dataloader._BaseDataLoaderIter
    patches.replace(batches, "__next__", timed(batches.__next__, measuring, _KIND, begin_next))
    patches.replace(DataLoader, "__iter__", timed(DataLoader.__iter__, measuring, _KIND, begin_iter))
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        patches.replace(fetcher, "fetch", _timed_fetch(fetcher.fetch))


def _timed_fetch(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Counts what a forked worker loads; in the rank itself loading is waiting, and known as such."""

    @functools.wraps(function)
    def fetch(self: Any, index: Any) -> Any:
        began_ns = time.monotonic_ns()
        try:
            data = function(self, index)
        except BaseException as error:
            hide_frame(error)
            raise
        worker = get_worker_info()
        if worker is not None:
            TIMES.add(worker.id, time.monotonic_ns() - began_ns)
        return data

    return fetch
