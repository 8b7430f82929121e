"""Finds the modules whose calls are a training loop's forwards, by asking the garbage collector once."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn import Module
from torch.optim.optimizer import Optimizer

_TRACED = "_actual_script_module"
"""Where a module that `torch.jit.trace` made keeps what it stands for."""


def find_modules_and_optimizers() -> tuple[list[Any], list[Any]]:
    """Every living module and optimizer that is not frozen.

    Looks at nothing but the identity of types: a proxy object must not wake up, and there are hundreds of thousands.
    """
    module_types, optimizer_types = _subtypes(Module), _subtypes(Optimizer)
    wanted = module_types | optimizer_types
    found = [thing for thing in gc.get_objects() if id(type(thing)) in wanted]
    modules = [thing for thing in found if id(type(thing)) in module_types]
    return modules, [thing for thing in found if id(type(thing)) in optimizer_types]


def _subtypes(base: type) -> set[int]:
    """The identities of a class and of all classes below it."""
    seen = {id(base)}
    pending: list[type] = [base]
    while pending:
        kinds: list[type] = type.__subclasses__(pending.pop())
        for kind in kinds:
            if id(kind) not in seen:
                seen.add(id(kind))
                pending.append(kind)
    return seen


def roots_of(modules: list[Any], optimizers: list[Any]) -> list[Any]:
    """The modules that are nobody's child and own a parameter of an optimizer.

    If there are none, those with any trainable parameter: optimizers may be to come, or update copies of the weights.
    """
    wanted = {id(p) for o in optimizers for group in vars(o).get("param_groups", ()) for p in group["params"]}
    children = {id(child) for module in modules for child in _children(module)}
    tops = [module for module in modules if id(module) not in children]
    return [top for top in tops if _owns(top, wanted)] or [top for top in tops if _owns(top, set())]


def children_of(roots: Iterable[Any]) -> list[Any]:
    """One level below: for a root that is a mere container, or that calls its parts by itself."""
    return [child for root in roots for child in _children(root) if _owns(child, set())]


def is_on_accelerator(modules: Iterable[Any]) -> bool:
    """Whether a parameter of these modules is elsewhere than in the host's memory."""
    return any(parameter.device.type not in ("cpu", "meta") for module in modules for parameter in _parameters(module))


def _owns(module: Any, wanted: set[int]) -> bool:
    return any(id(p) in wanted if wanted else p.requires_grad for p in _parameters(module))


def _parameters(module: Any) -> Iterator[Any]:
    """Without the module's own methods: those a script may have changed."""
    seen: set[int] = set()
    pending = [module]
    while pending:
        one = pending.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield from (p for p in (vars(one).get("_parameters") or {}).values() if p is not None)
            pending.extend(_children(one))


def _children(module: Any) -> Iterator[Any]:
    attributes = vars(module)
    for child in (attributes.get("_modules") or {}).values():
        if child is not None:
            yield child
    if _TRACED in attributes:
        yield attributes[_TRACED]
