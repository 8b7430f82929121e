"""When a rank's own gradients are ready, in jobs of several ranks: the rest of its backward is waiting for the others.

DDP and FSDP wait for their collectives in a callback that the autograd engine runs at the very end. One that is queued
before theirs, by the first node of the graph, runs when the rank's own work is done and before they wait. Without it a
slow rank and those that wait for it have the same backward. Nothing is left on a tensor or a module.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from traceml_client.steps import Measuring

_KIND = "the hook on own gradients"


class _Alone:
    """A torch without process groups."""

    _default_pg = None


class OwnGradients:
    """Watches one backward at a time."""

    __slots__ = ("_measuring", "_queue_callback", "_ready_ns", "world")

    def __init__(self, measuring: Measuring) -> None:
        self._measuring = measuring
        self._queue_callback = torch.autograd.Variable._execution_engine.queue_callback
        self._ready_ns = 0
        self.world: Any = distributed.distributed_c10d._world if distributed.is_available() else _Alone
        """Its `_default_pg` is null until the script makes a process group. `distributed.is_initialized()` would say so
        too, by three calls of Python functions: 0.9 us in every step of a job that never makes one."""

    def watch(self, tensors: Any) -> Any:
        """A backward from these begins in a process group: what `end` needs; null if there is nobody to wait for."""
        if distributed.get_world_size() < 2:
            return None
        if isinstance(tensors, Sequence):
            tensors = tensors[0]
        node = getattr(tensors, "grad_fn", None)
        self._ready_ns = 0
        return None if node is None else node.register_prehook(self._begin)

    def end(self, handle: Any) -> None:
        """It ended, and the clock has left it."""
        handle.remove()
        if self._ready_ns:
            self._measuring.clock.see_gradient_wait(self._ready_ns)

    def _begin(self, _gradients: object) -> None:
        try:
            self._queue_callback(self._be_ready)
        except Exception as error:  # noqa: BLE001 - the boundary
            self._measuring.fault(_KIND, error)

    def _be_ready(self) -> None:
        self._ready_ns = time.monotonic_ns()
