"""The same fault on another rank and at another step, so that a report cannot be right by the table's numbers alone."""

from __future__ import annotations

import msgspec

from tests.faults.catalogue import Fault

STEPS = (20, 3, 27, 11, 1)
"""Of the first run and of those that repeat it: early ones, where little was measured, and late ones."""


def variant(fault: Fault, index: int) -> Fault:
    """The fault as its repetition `index` runs it; 0 is the table's own form.

    Only what the arguments decide is changed: `--step` where the truth is that every rank got that far, and `--rank`
    where it alone says who fails, on one node.
    """
    if index == 0:
        return fault
    step = _number_of(fault.args, "--step")
    if step is not None and set(fault.steps_completed) == {step}:
        fault = _with_step(fault, STEPS[index % len(STEPS)])
    rank = _number_of(fault.args, "--rank")
    if rank is not None and rank == fault.initiating_rank and fault.nnodes == 1 and not _names_other_ranks(fault):
        fault = _with_rank(fault, (rank + index) % fault.nproc)
    return fault


def _with_step(fault: Fault, step: int) -> Fault:
    completed = (step,) * len(fault.steps_completed)
    return msgspec.structs.replace(fault, args=_replaced(fault.args, "--step", step), steps_completed=completed)


def _with_rank(fault: Fault, rank: int) -> Fault:
    return msgspec.structs.replace(fault, args=_replaced(fault.args, "--rank", rank), initiating_rank=rank)


def _names_other_ranks(fault: Fault) -> bool:
    """Whether other ranks have parts of their own; who listens on `--port` cannot be the one that finds it taken."""
    return any(option in fault.args for option in ("--second", "--stubborn", "--uploader", "--port"))


def _number_of(args: tuple[str, ...], option: str) -> int | None:
    return int(args[args.index(option) + 1]) if option in args else None


def _replaced(args: tuple[str, ...], option: str, value: int) -> tuple[str, ...]:
    at = args.index(option) + 1
    return (*args[:at], str(value), *args[at + 1 :])
