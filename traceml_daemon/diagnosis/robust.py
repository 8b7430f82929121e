"""Robust statistics: medians of blocks, Theil-Sen slopes, Mann-Kendall's test of a trend."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.profile import Floats, Integers, RunProfile

_MAX_POINTS: Final = 120
"""Of a trend: its pairs grow with the square."""


class Blocks:
    """All ranks' steps in consecutive blocks of steps, the same for every rank; mean milliseconds of each.

    Ranks that miss a block (they ended early, or began late) have NaN there.
    """

    def __init__(self, run: RunProfile, *, is_fine: bool = False) -> None:
        """`is_fine`: blocks of one cell, for what does not come in bursts."""
        counts = np.stack([rank.counts for rank in run.ranks])
        totals = np.stack([rank.total_ms for rank in run.ranks])
        width = 1 if is_fine else _block_width(counts.shape[1], run.steps_per_cell)
        starts = _block_starts(counts.shape[1], width)
        block_counts = np.add.reduceat(counts, starts, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.add.reduceat(totals, starts, axis=2) / block_counts[:, None, :]
        self.phases: Floats = np.where(block_counts[:, None, :] > 0, means, np.nan)
        """Shape (ranks, profile.NUM_ROWS, blocks)."""
        self.steps: Integers = block_counts.max(axis=0)
        """Steps of each block, of the rank that has most."""
        self.first_steps: Integers = starts * run.steps_per_cell + 1

    @property
    def num_blocks(self) -> int:
        return len(self.steps)

    def step_ms(self) -> Floats:
        """Shape (ranks, blocks)."""
        whole: Floats = self.phases.sum(axis=1)
        return whole


def _block_width(num_cells: int, steps_per_cell: int) -> int:
    return max(1, -(-policy.BLOCK_STEPS // steps_per_cell), -(-num_cells // policy.MAX_BLOCKS))


def _block_starts(num_cells: int, width: int) -> Integers:
    """First cell of each block; the rest at the end, if it is small, joins the last one."""
    starts = np.arange(0, max(1, num_cells), width)
    return starts[:-1] if len(starts) > 1 and num_cells - starts[-1] < width / 2 else starts


def median(values: Floats, axis: int) -> Floats:
    """Without NaN; NaN where there is nothing else."""
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, -1)  # NaN last
    count = (~np.isnan(ordered)).sum(axis=-1, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=-1)
    high = np.take_along_axis(ordered, count // 2 * (count > 0), axis=-1)
    middle: Floats = ((low + high) / 2.0)[..., 0]
    return middle


def thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most 120 points, each the median of its neighbours."""
    if len(x) <= _MAX_POINTS:
        return x, y
    parts = np.array_split(np.arange(len(x)), _MAX_POINTS)
    return np.array([np.median(x[p]) for p in parts]), np.array([np.median(y[p]) for p in parts])


def theil_sen(x: Floats, y: Floats) -> float:
    """The median slope over all pairs of points; 0 for fewer than two."""
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    is_apart = run > 0
    if not is_apart.any():
        return 0.0
    return float(np.median((y[second] - y[first])[is_apart] / run[is_apart]))


def mann_kendall(y: Floats) -> float:
    """z of the test that there is no trend; positive for a rise."""
    count = len(y)
    if count < 3:
        return 0.0
    first, second = np.triu_indices(count, 1)
    s = float(np.sign(y[second] - y[first]).sum())
    if s == 0:
        return 0.0
    return (s - math.copysign(1.0, s)) / math.sqrt(count * (count - 1) * (2 * count + 5) / 18.0)
