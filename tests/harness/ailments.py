"""Made-up runs with something wrong, and what the diagnosis has to say of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.harness.synthetic import (
    BACKWARD,
    FORWARD,
    H2D,
    INPUT,
    MIB,
    OPTIMIZER,
    RESIDUAL,
    SyntheticRun,
    calm,
    healthy,
)
from traceml_daemon.diagnosis.finding import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    run: SyntheticRun
    kinds: tuple[Kind, ...]
    """What may stand first."""
    also: tuple[Kind, ...] = ()
    """What is true beside it."""
    ranks: tuple[int, ...] | None = None
    phase: str | None = None


def _step_ms(run: SyntheticRun) -> float:
    return float(np.median(run.own_ms.sum(axis=0)))


def input_bound(seed: int) -> Case:
    """Loaders slower than the model: in the loop itself, or in workers that deliver in bursts and by their own pace."""
    draw = np.random.default_rng(seed)
    run = calm(seed)
    _, num_ranks, num_steps = run.own_ms.shape
    wait_ms = max(4.0, _step_ms(run) * draw.uniform(1.2, 15))
    wait = wait_ms * draw.lognormal(0, 0.1, (num_ranks, num_steps))
    num_workers = int(draw.choice([0, 0, 1, 2, 4, 8]))
    if num_workers:
        is_due = (np.arange(num_steps) % num_workers) == 0
        wait = np.where(is_due, num_workers * wait, 0.05)
    if num_workers and num_ranks > 1:  # the quicker loaders fill their queues in time
        wait *= 1 - draw.uniform(0, 1, (num_ranks, 1)) * np.minimum(1, np.arange(num_steps) / num_steps)
        wait[0] = wait_ms * (num_workers if num_workers else 1) * is_due
    run.own_ms[INPUT] = wait
    return Case(run=run, kinds=("INPUT_BOUND",), phase="input_wait")


def _straggler(seed: int, row: int, kind: Kind, phase: str) -> Case:
    draw = np.random.default_rng(seed)
    run = calm(seed, min_ranks=2)
    _, num_ranks, num_steps = run.own_ms.shape
    culprit = int(draw.integers(num_ranks))
    extra_ms = max(4.0, _step_ms(run) * draw.uniform(0.8, 20))
    first = int(num_steps * draw.choice([0, 0, 0.2, 0.4, 0.6]))
    run.own_ms[row, culprit, first:] += extra_ms * draw.lognormal(0, 0.15, num_steps - first)
    run.is_synchronous = bool(draw.integers(4))
    return Case(run=run, kinds=(kind,), ranks=(culprit,), phase=phase)


def slowdown(seed: int) -> Case:
    """In any phase, of all ranks, to between twice and thirty times a step."""
    draw = np.random.default_rng(seed)
    run = calm(seed, min_steps=60)
    num_steps = run.own_ms.shape[2]
    row = int(draw.choice([INPUT, FORWARD, BACKWARD, RESIDUAL, OPTIMIZER]))
    run.own_ms[row] += np.linspace(0, _step_ms(run) * draw.uniform(1.0, 30), num_steps) ** draw.choice([1.0, 1.0, 1.2])
    phase = ("input_wait", "h2d", "forward", "backward", "optimizer", "residual")[row]
    return Case(run=run, kinds=("SLOWDOWN",), also=("INPUT_BOUND",) if row == INPUT else (), phase=phase)


def periodic_stalls(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    run = calm(seed, min_steps=80)
    num_steps = run.own_ms.shape[2]
    period = int(draw.integers(5, num_steps // 6))
    stall_ms = max(150.0, _step_ms(run) * period * draw.uniform(0.3, 2.0), 600.0 * period / num_steps)
    run.own_ms[RESIDUAL][:, period - 1 :: period] += stall_ms
    return Case(run=run, kinds=("PERIODIC_STALLS",), phase="residual")


def checkpoint_heavy(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    run = calm(seed, min_steps=60)
    num_steps = run.own_ms.shape[2]
    period = int(draw.integers(5, num_steps // 5))
    run.unusual_steps[period - 1 :: period] = True
    save_ms = max(_step_ms(run) * period * draw.uniform(0.8, 4.0), 1500.0 * period / num_steps)
    run.own_ms[RESIDUAL][:, run.unusual_steps] += save_ms
    return Case(run=run, kinds=("CHECKPOINT_HEAVY",))


def memory_creep(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    run = calm(seed, min_ranks=2)
    num_ranks = run.own_ms.shape[1]
    count = int(draw.choice([10, 14, 25, 60, 400]))
    creeping = (int(draw.integers(num_ranks)),) if draw.integers(2) else tuple(range(num_ranks))
    level = draw.uniform(250, 2000) * MIB
    memory = level + draw.normal(0, 1 * MIB, (num_ranks, count))
    growth = max(60 * MIB, level * draw.uniform(0.15, 3.0))
    memory[list(creeping)] += np.linspace(0, growth, count) + draw.normal(0, growth / 60, (len(creeping), count))
    run.memory = memory
    return Case(run=run, kinds=("MEMORY_CREEP",), ranks=creeping)


def memory_imbalance(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    run = calm(seed, min_ranks=2)
    num_ranks, heavy = run.own_ms.shape[1], int(draw.integers(run.own_ms.shape[1]))
    memory = draw.uniform(300, 2000) * MIB + draw.normal(0, 1 * MIB, (num_ranks, 30))
    memory[heavy] += max(400 * MIB, float(memory.mean()) * draw.uniform(0.8, 2.0))
    run.memory = memory
    return Case(run=run, kinds=("MEMORY_IMBALANCE",), ranks=(heavy,))


def transfer_bound(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    run = calm(seed)
    run.own_ms[H2D] += max(3.0, _step_ms(run) * draw.uniform(0.8, 4))
    return Case(run=run, kinds=("TRANSFER_BOUND",), phase="h2d")


def optimizer_heavy(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    run = calm(seed)
    run.own_ms[OPTIMIZER] += max(10.0, _step_ms(run) * draw.uniform(2.5, 6))
    return Case(run=run, kinds=("OPTIMIZER_HEAVY",), phase="optimizer")


def residual_heavy(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    run = calm(seed)
    run.own_ms[RESIDUAL] += max(10.0, _step_ms(run) * draw.uniform(2.0, 10))
    return Case(run=run, kinds=("RESIDUAL_HEAVY",), phase="residual")


def compute_bound(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    run = calm(seed, min_step_ms=10)
    run.own_ms[FORWARD] += _step_ms(run) * draw.uniform(2, 5)
    run.own_ms[BACKWARD] += _step_ms(run) * draw.uniform(2, 5)
    return Case(run=run, kinds=("COMPUTE_BOUND",))


def too_short(seed: int) -> Case:
    return Case(run=healthy(seed, num_steps=2 + seed % 8), kinds=("INSUFFICIENT_DATA",))


AILMENTS: dict[str, Callable[[int], Case]] = {
    "input_bound": input_bound,
    "input_straggler": lambda seed: _straggler(seed, INPUT, "INPUT_STRAGGLER", "input_wait"),
    "transfer_straggler": lambda seed: _straggler(seed, H2D, "TRANSFER_STRAGGLER", "h2d"),
    "forward_straggler": lambda seed: _straggler(seed, FORWARD, "COMPUTE_STRAGGLER", "forward"),
    "backward_straggler": lambda seed: _straggler(seed, BACKWARD, "COMPUTE_STRAGGLER", "backward"),
    "optimizer_straggler": lambda seed: _straggler(seed, OPTIMIZER, "COMPUTE_STRAGGLER", "optimizer"),
    "residual_straggler": lambda seed: _straggler(seed, RESIDUAL, "STRAGGLER", "residual"),
    "slowdown": slowdown,
    "periodic_stalls": periodic_stalls,
    "checkpoint_heavy": checkpoint_heavy,
    "memory_creep": memory_creep,
    "memory_imbalance": memory_imbalance,
    "transfer_bound": transfer_bound,
    "optimizer_heavy": optimizer_heavy,
    "residual_heavy": residual_heavy,
    "compute_bound": compute_bound,
    "too_short": too_short,
}


def wrong(case: Case) -> Iterator[str]:
    """What the diagnosis gets wrong; criticals that are not the ailment are named first."""
    findings = case.run.findings()
    wrongly_critical = [f for f in findings if f.severity == "critical" and f.kind not in (*case.kinds, *case.also)]
    yield from (f"critical {finding.kind}: {finding.summary}" for finding in wrongly_critical)
    first = findings[0]
    if first.kind not in case.kinds:
        yield f"{first.severity} {first.kind} first: {first.summary}"
    elif case.ranks is not None and first.ranks != case.ranks:
        yield f"ranks {first.ranks}, not {case.ranks}"
    elif case.phase is not None and first.phase != case.phase:
        yield f"phase {first.phase}, not {case.phase}"
