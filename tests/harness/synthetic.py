"""Made-up runs of ranks that exchange gradients: every phase's time drawn by seed, and who waits for whom follows.

`kinds` says what ails a run; the size of the job, its noise and the ailment's strength vary with the seed. The ranks
meet at the end of every backward: the last one to arrive waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.harness.facts import START_NS, Rank, run_facts
from traceml_client.protocol import columns
from traceml_daemon.core.events import Incarnation
from traceml_daemon.diagnosis.finding import Finding
from traceml_daemon.diagnosis.verdict import diagnose
from traceml_daemon.report.facts import by_rank
from traceml_daemon.report.measurements import Records
from traceml_daemon.report.reading import Reading

Array = npt.NDArray[np.float64]
INPUT, H2D, FORWARD, BACKWARD, OPTIMIZER, RESIDUAL = range(6)
_COMM = 0.05
"""Of a step: exchanging gradients."""
MIB = float(1 << 20)


@dataclass(kw_only=True)
class SyntheticRun:
    """`own_ms`: (6, ranks, steps) by phase, without the waiting for others. Arrays may be changed before `findings`."""

    own_ms: Array
    unusual_steps: npt.NDArray[np.bool_]
    memory: Array | None = None
    """(ranks, samples), bytes, evenly over the run."""
    memory_total: float = 64 * 1024 * MIB
    cpu_wait_share: tuple[float, ...] = ()
    """By rank; none is 0 for all."""
    is_synchronous: bool = True
    load_ms: tuple[float, ...] = ()
    """By rank: what a batch takes its one worker, 0 where nobody timed it; none is no workers."""

    def findings(self) -> tuple[Finding, ...]:
        ranks = [Rank(rank=rank) for rank in range(self.own_ms.shape[1])]
        facts = run_facts(ranks, status="completed", exit_code=0)
        attempts = by_rank(facts.attempts)
        reading = Reading(_Recorded(self), attempts, facts)  # type: ignore[arg-type]
        return diagnose(reading.profile(has_accelerator=False))


class _Recorded:
    """Stands for `Measurements`: the same calls, records from arrays."""

    def __init__(self, run: SyntheticRun) -> None:
        self._run = run
        self._values, self._tags = _step_values(run)

    def num_steps(self, _incarnation: Incarnation) -> int:
        return self._values.shape[2]

    def steps(self, incarnation: Incarnation) -> Iterator[Records]:
        values = self._values[:, incarnation.local_rank]
        ends = START_NS + np.cumsum(values[-1])
        yield Records(np.arange(values.shape[1], dtype=np.int64), ends, self._tags[incarnation.local_rank], values)

    def samples(self, incarnation: Incarnation) -> Iterator[Records]:
        run, rank = self._run, incarnation.local_rank
        end_ns = int(self._values[-1, rank].sum())
        count = max(2, int(end_ns / 0.25e9)) if run.memory is None else run.memory.shape[1]
        memory = np.full(count, 300 * MIB) if run.memory is None else run.memory[rank]
        times = np.linspace(0, end_ns, count).astype(np.int64)
        process = np.full((6, count), -1, np.int64)
        wait_share = run.cpu_wait_share[rank] if run.cpu_wait_share else 0.0
        process[0], process[1], process[5] = times // 2, memory, times * wait_share
        kinds = {columns.PROCESS_SAMPLE: process}
        if rank == 0:
            kinds[columns.NODE_SAMPLE] = np.full((6, count), -1, np.int64)
            kinds[columns.NODE_SAMPLE][:3].T[:] = 900, 8 * 1024 * MIB, run.memory_total
        if run.load_ms:
            num_loaded = self._values.shape[2] if run.load_ms[rank] else 0
            kinds[columns.LOADER_SAMPLE] = np.full((6, count), -1, np.int64)
            kinds[columns.LOADER_SAMPLE][:3].T[:] = 1, num_loaded, num_loaded * run.load_ms[rank] * 1e6
        yield Records(
            np.arange(count * len(kinds)),
            np.tile(START_NS + times, len(kinds)),
            np.repeat(list(kinds), count).astype(np.uint8),
            np.concatenate(list(kinds.values()), axis=1),
        )


def _step_values(run: SyntheticRun) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    own = run.own_ms
    num_ranks = own.shape[1]
    before = own[[INPUT, H2D, FORWARD, BACKWARD, RESIDUAL]].sum(axis=0)
    waiting = np.zeros_like(before)
    if num_ranks > 1 and run.is_synchronous:
        waiting = before.max(axis=0) - before + _COMM * np.median(before)
    backward = own[BACKWARD] + waiting
    whole = own.sum(axis=0) + waiting
    values = np.stack([own[INPUT], own[H2D], own[FORWARD], backward, own[OPTIMIZER], whole])
    tags = np.zeros(before.shape, np.int64)
    if num_ranks > 1:
        share = np.divide(waiting, backward, out=np.zeros_like(waiting), where=backward > 0)
        tags |= (1 + np.round(columns.MAX_WAIT_LEVEL * share)).astype(np.int64) << columns.WAIT_SHIFT
    tags[:, 0] |= columns.IS_WARMUP
    tags[:, run.unusual_steps] |= columns.IS_UNUSUAL
    return (values * 1e6).astype(np.int64), tags.astype(np.uint8)


def healthy(seed: int, *, num_steps: int | None = None, min_ranks: int = 1, min_step_ms: float = 0.2) -> SyntheticRun:
    """Steps from 0.2 ms to a second, 1 to 16 ranks, a quiet or a busy machine, with all that healthy runs do."""
    draw = np.random.default_rng(seed)
    num_ranks = max(min_ranks, int(draw.choice([1, 2, 2, 4, 8, 16])))
    num_steps = num_steps or int(draw.choice([20, 40, 60, 100, 300, 1500]))
    step_ms = float(10 ** draw.uniform(np.log10(min_step_ms), 3.0))
    shares = draw.dirichlet([0.6, 0.3, 4, 8, 1.5, 1.5])
    shares[INPUT] = min(shares[INPUT], 0.15)
    shares[H2D] = min(shares[H2D], 0.10)
    is_busy = bool(draw.integers(2))
    own = step_ms * shares[:, None, None] * draw.lognormal(0, 0.35 if is_busy else 0.08, (6, num_ranks, num_steps))
    own *= draw.lognormal(0, 0.03, (1, num_ranks, 1))
    own[:, :, :4] *= draw.uniform(1, 6)
    if is_busy:  # somebody else's time slices, and a spell of somebody else's load
        own += draw.uniform(2, 12) * (draw.random(own.shape) < 0.01)
        first = int(draw.integers(num_steps))
        own[:, :, first : first + num_steps // 4] *= draw.uniform(1, 1.6)
    unusual = np.zeros(num_steps, np.bool_)
    if draw.integers(2):
        unusual[:: int(draw.integers(8, 40))] = True
        unusual[0] = False
        own[RESIDUAL][:, unusual] += step_ms * draw.uniform(0, 1.2)
    return SyntheticRun(own_ms=own, unusual_steps=unusual, memory=_settling_memory(draw, num_ranks))


def _settling_memory(draw: np.random.Generator, num_ranks: int) -> Array:
    """Grows at the start, then moves about its level."""
    count = int(draw.integers(3, 80))
    level = draw.uniform(200, 4000) * MIB
    ramp = 1 - np.exp(-np.arange(count) / max(1.0, count / 25))
    noise = draw.normal(0, 1.5 * MIB, (num_ranks, count))
    return np.maximum.accumulate(level * (0.8 + 0.2 * ramp) + noise, axis=1)


def calm(seed: int, *, min_ranks: int = 1, min_step_ms: float = 5.0, min_steps: int = 40) -> SyntheticRun:
    """A healthy run large enough to have an ailment: not over before it shows."""
    draw = np.random.default_rng(1000 + seed)
    num_steps = int(draw.choice([min_steps, 80, 200, 1000]))
    run = healthy(seed, num_steps=num_steps, min_ranks=min_ranks, min_step_ms=min_step_ms)
    run.unusual_steps[:] = False
    run.memory = _settling_memory(draw, run.own_ms.shape[1])
    return run
