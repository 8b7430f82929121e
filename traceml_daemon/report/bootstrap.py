"""How sure a change between two runs is: intervals by a block bootstrap over stretches of steps and groups of ranks.

What is drawn again must be larger than what hangs together. Steps hang together over time, so a stretch is a twentieth
of the run; ranks hang together within a step (they wait for one another), so a stretch is one for all ranks. A cell is
a stretch of steps of a group of ranks, kept as a histogram: the memory is bounded whatever the run's length, and a
figure that is read from a histogram is right to 0.2 %.

Two things widen an interval beyond what the steps' noise explains. Few stretches: Student's t in place of the normal.
Drift from run to run, which two single runs cannot show: what the halves of each run differ by, and at least
RUN_TO_RUN, stands for it. Everything is drawn from one seed, so that the same two runs get the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traceml_client.protocol.columns import IS_SKIPPED, IS_WARMUP, PHASES
from traceml_daemon.core.events import Incarnation
from traceml_daemon.report.form import PHASE_NAMES
from traceml_daemon.report.measurements import Integers, Measurements, Records
from traceml_daemon.report.saved import SavedRun

Floats = npt.NDArray[np.float64]

MAX_STRETCHES: Final = 20
"""Fewer, longer ones miss no slow drift; from fewer than this an interval is a guess."""
MIN_STRETCH_STEPS: Final = 4
MAX_GROUPS: Final = 8
MAX_RANKS: Final = 64
"""Evenly spread ranks of a larger run stand for all."""
_BINS_PER_OCTAVE: Final = 256
_SHIFT: Final = 52 - 8
_FIRST_BIN: Final = 1023 * _BINS_PER_OCTAVE
"""Of 1 ns; a phase that took 0 ns counts as 1."""
_NUM_BINS: Final = 43 * _BINS_PER_OCTAVE
"""Up to 2.4 hours."""
NUM_DRAWS: Final = 1000
SEED: Final = 20_240_229
RUN_TO_RUN: Final = 0.01
"""Standard deviation of a run's figures against another run of the same script on the same machine: memory layout,
clock rates and page cache are dealt anew for each process."""
_Z: Final = 1.96
_MIDDLE_95: Final = (2.5, 97.5)
_WHOLE: Final = -3
"""Where the whole run stands behind the draws; its halves follow."""
QUIET_SHARE: Final = 0.05
"""The fastest twentieth of the steps: enough to be no accident, few enough to be found on a machine in use."""


class PhaseStretches:
    """One phase: how often each duration occurs, and the time in all, by cell; all stretches of group 0 come first."""

    def __init__(self, num_cells: int) -> None:
        self.counts = np.zeros((num_cells, _NUM_BINS), np.int32)
        self.sums = np.zeros(num_cells)

    def add(self, cells: Integers, values: Integers) -> None:
        places = (np.maximum(values, 1).astype(np.float64).view(np.int64) >> _SHIFT) - _FIRST_BIN
        flat = cells * _NUM_BINS + np.minimum(places, _NUM_BINS - 1)
        used, counts = np.unique(flat, return_counts=True)
        self.counts.reshape(-1)[used] += counts.astype(np.int32)
        self.sums += np.bincount(cells, values, len(self.sums))

    def compact(self) -> tuple[npt.NDArray[np.float32], Floats]:
        """(counts of the bins that occur, cell by bin; the middle of each of these bins in ns)."""
        used = np.flatnonzero(self.counts.any(axis=0))
        edges = np.stack([used, used + 1]).astype(np.int64) + _FIRST_BIN
        return self.counts[:, used].astype(np.float32), (edges << _SHIFT).view(np.float64).mean(axis=0)


class RunStretches:
    """All phases of one run."""

    def __init__(self, num_ranks: int, num_steps: int) -> None:
        """`num_steps`: the number of the last step of any rank."""
        self.num_groups = max(1, min(MAX_GROUPS, num_ranks))
        self.num_stretches = max(1, min(MAX_STRETCHES, num_steps // MIN_STRETCH_STEPS))
        self._num_ranks, self._num_steps = num_ranks, num_steps
        num_cells = self.num_groups * self.num_stretches
        self.phases = {name: PhaseStretches(num_cells) for name in PHASE_NAMES}
        self.steps = np.zeros(num_cells)
        """Counted steps by cell."""

    def add(self, place: int, pieces: Iterable[Records]) -> None:
        """All records of the rank that stands at `place` among those that are read."""
        group = place * self.num_groups // self._num_ranks
        for records in pieces:
            is_steady = (records.tags & (IS_SKIPPED | IS_WARMUP)) == 0
            sequences, values = records.sequences[is_steady], records.values[:, is_steady]
            stretches = np.minimum(sequences * self.num_stretches // self._num_steps, self.num_stretches - 1)
            cells = group * self.num_stretches + stretches
            self.steps += np.bincount(cells, minlength=len(self.steps))
            self._add_phases(cells, values)

    def _add_phases(self, cells: Integers, values: Integers) -> None:
        step = values[len(PHASES)]
        residual = np.maximum(step - np.maximum(values[: len(PHASES)], 0).sum(axis=0), 0)
        for name, column in zip(PHASE_NAMES, (*values[: len(PHASES)], residual, step), strict=True):
            is_measured = column >= 0
            self.phases[name].add(cells[is_measured], column[is_measured])


def read_stretches(measurements: Measurements, summary: SavedRun) -> RunStretches:
    """The last attempt of each rank, as in the summary.

    Raises:
        StoreError: the database is damaged.
    """
    attempts = [rank.attempts[-1] for rank in summary.ranks if rank.attempts]
    attempts = attempts[:: -(-len(attempts) // MAX_RANKS) or 1]
    cells = RunStretches(len(attempts), max((attempt.last_step for attempt in attempts), default=0))
    for place, attempt in enumerate(attempts):
        incarnation = Incarnation(attempt.node_rank, attempt.local_rank, attempt.slot_attempt)
        cells.add(place, measurements.steps(incarnation))
    return cells


Spread = tuple[float, float]
"""How far the logarithm of B / A may lie below and above its estimate, with 95 % confidence. Both at least 0."""


class PhaseSpreads(NamedTuple):
    median: Spread | None = None
    tail: Spread | None = None
    mean: Spread | None = None
    quiet: Spread | None = None
    quiet_ns: tuple[float, float] = (0.0, 0.0)
    """Of A and B: the fifth percentile. The summaries have the other three."""


class Draws:
    """Which cells count how often in each draw: shape (draws, cells), for A and B.

    Ranks of two runs of equal size are drawn as pairs: what makes rank 3 slower than rank 0 in both is no noise.
    """

    def __init__(self, a: RunStretches, b: RunStretches) -> None:
        generator = np.random.default_rng(SEED)
        groups_a = _multiplicities(generator, a.num_groups)
        groups_b = groups_a if a.num_groups == b.num_groups else _multiplicities(generator, b.num_groups)
        self.a = _cross(groups_a, _multiplicities(generator, a.num_stretches))
        self.b = _cross(groups_b, _multiplicities(generator, b.num_stretches))
        fewest = max(2, min(a.num_stretches, b.num_stretches))
        self.widening = (1 + 1.21 / (fewest - 1)) * float(np.sqrt(fewest / (fewest - 1)))
        """Student's quantile over the normal one, and the bootstrap's known lack at few blocks."""


def spreads(a: RunStretches, b: RunStretches, draws: Draws, name: str) -> PhaseSpreads:
    """Of the changes of one phase."""
    *drawn, (quiet_a, quiet_b) = zip(_figures(a, name, draws.a), _figures(b, name, draws.b), strict=True)
    median, tail, mean = (_spread(of_a, of_b, draws.widening) for of_a, of_b in drawn)
    # Where a whole half was disturbed, the other one has the floor: that they differ is no drift.
    quiet = _spread(quiet_a, quiet_b, draws.widening, halves_drift=False)
    quiet_ns = float(np.nan_to_num(quiet_a[_WHOLE])), float(np.nan_to_num(quiet_b[_WHOLE]))
    return PhaseSpreads(median, tail, mean, quiet, quiet_ns)


def _figures(run: RunStretches, name: str, weights: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Median, tail, mean and quiet steps of one phase by draw; after the draws stand the whole run and its halves."""
    is_late = np.arange(run.num_stretches) * 2 >= run.num_stretches
    halves = np.tile(np.stack([np.ones_like(is_late), ~is_late, is_late]), run.num_groups)
    weights = np.concatenate([weights, halves])
    counts, middles = run.phases[name].compact()
    cumulated = np.cumsum(weights.astype(np.float32) @ counts, axis=1, dtype=np.float64)
    steps = weights @ run.steps
    means = np.divide(weights @ run.phases[name].sums, steps, out=np.full(len(steps), np.nan), where=steps > 0)
    median, tail, quiet = (quantile(cumulated, middles, share) for share in (0.50, 0.95, QUIET_SHARE))
    return median, tail, means, quiet


def quantile(cumulated: Floats, middles: Floats, share: float) -> Floats:
    """By draw, of the counts up to each bin (draw by bin) and the bins' middles; nan where a draw holds no value."""
    if not len(middles):
        return np.full(len(cumulated), np.nan)
    totals = cumulated[:, -1:]
    places = (cumulated < share * totals).sum(axis=1)
    return np.where(totals[:, 0] == 0, np.nan, middles[np.minimum(places, len(middles) - 1)])


def _spread(a: Floats, b: Floats, widening: float, *, halves_drift: bool = True) -> Spread | None:
    """Null where either run measured nothing, or nothing but zeros."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs_a, logs_b = np.log(a), np.log(b)
    if not (np.isfinite(logs_a[_WHOLE]) and np.isfinite(logs_b[_WHOLE])):
        return None
    changes = logs_b[:_WHOLE] - logs_a[:_WHOLE]
    changes = changes[np.isfinite(changes)] - (logs_b[_WHOLE] - logs_a[_WHOLE])
    if len(changes) < NUM_DRAWS // 2:
        return None
    low, high = np.percentile(changes, _MIDDLE_95)
    between_halves = [_half_difference(logs) ** 2 for logs in (logs_a, logs_b)] if halves_drift else []
    drift = _Z * float(np.sqrt(2 * RUN_TO_RUN**2 + sum(between_halves)))
    return float(np.hypot(max(-low, 0.0) * widening, drift)), float(np.hypot(max(high, 0.0) * widening, drift))


def _half_difference(logs: Floats) -> float:
    difference = (logs[-1] - logs[-2]) / 2
    return float(difference) if np.isfinite(difference) else 0.0


def _multiplicities(generator: np.random.Generator, count: int) -> Floats:
    return generator.multinomial(count, np.full(count, 1 / count), NUM_DRAWS).astype(np.float64)


def _cross(groups: Floats, stretches: Floats) -> Floats:
    return (groups[:, :, None] * stretches[:, None, :]).reshape(NUM_DRAWS, -1)
