"""The optimizers that have stepped: which parameters they update, and which of them are gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any


def _forget_nothing(_key: int) -> None:
    pass


class OptimizerTable:
    """Keyed by `id(optimizer)`; keeps no optimizer alive. An entry is gone before its key can be used again."""

    def __init__(self) -> None:
        self._parameters: dict[int, frozenset[int]] = {}
        self.alive: dict[int, weakref.ref[Any]] = {}
        self.forget: Callable[[int], None] = _forget_nothing
        """Told the key of an optimizer that is gone, at any instant."""

    def add(self, optimizer: Any) -> None:
        """Remember an optimizer: an object with torch's `param_groups`, or something that only looks like one."""
        key = id(optimizer)
        groups = getattr(optimizer, "param_groups", ())
        self._parameters[key] = frozenset(id(p) for group in groups for p in group.get("params", ()))
        self.alive[key] = weakref.ref(optimizer, lambda _ref: self._remove(key))

    def is_replacing(self, new: int, others: Iterable[int]) -> bool:
        """Whether the new optimizer updates a parameter that one of the others updates too."""
        mine = self._parameters.get(new, frozenset())
        return any(not mine.isdisjoint(self._parameters.get(other, frozenset())) for other in others)

    def _remove(self, key: int) -> None:
        self._parameters.pop(key, None)
        self.alive.pop(key, None)
        self.forget(key)
