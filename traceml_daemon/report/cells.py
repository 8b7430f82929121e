"""Steps of a rank added up by cell: equal spans of step numbers, the same for all ranks of a run.

What is kept does not grow with the run: few cells where there are many ranks, one step each where there are few steps.
Charts and the diagnosis both read cells, so what a person sees is what was judged. Warm-up, skipped and unusual steps
are in no cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceml_client.protocol.columns import MAX_WAIT_LEVEL, NUM_VALUES, PHASES, WAIT_SHIFT
from traceml_daemon.report.measurements import Integers, Records

MAX_CELLS: Final = 240
"""Of one rank: a chart is a few hundred points wide."""
MIN_CELLS: Final = 32
MAX_CELLS_OF_ALL_RANKS: Final = 1 << 15
"""1,024 ranks get 32 cells each, which keeps a summary of them under a megabyte."""

EARLY_STEPS: Final = 16
"""Two batches of each of eight workers."""

Floats = npt.NDArray[np.float64]
CELL_ROWS: Final = (*PHASES, "residual", "step")
"""Rows of `StepCells.total_ns`."""
_STEP: Final = len(CELL_ROWS) - 1
_FIRST: Final = np.zeros(1, np.int64)
_ANY_WAIT: Final = 1 << WAIT_SHIFT
"""The smallest tag with a measured wait."""


def most_cells(num_ranks: int) -> int:
    return min(MAX_CELLS, max(MIN_CELLS, MAX_CELLS_OF_ALL_RANKS // max(1, num_ranks)))


@dataclass(frozen=True, slots=True)
class CellAxis:
    """Cell i holds the steps from i * steps_per_cell + 1 on."""

    steps_per_cell: int
    num_cells: int

    @classmethod
    def covering(cls, num_steps: int, num_ranks: int) -> CellAxis:
        """`num_steps`: of the rank that got furthest."""
        width = max(1, -(-num_steps // most_cells(num_ranks)))
        return cls(width, max(1, -(-num_steps // width)))


class StepCells:
    """One rank's cells, filled piece by piece."""

    def __init__(self, axis: CellAxis) -> None:
        self.axis = axis
        self.counts = np.zeros(axis.num_cells, np.int64)
        """Steps in each cell."""
        self.total_ns = np.zeros((len(CELL_ROWS), axis.num_cells), np.int64)
        self.waited_ns = np.zeros(axis.num_cells, np.int64)
        """Of the backward: waiting for other ranks."""
        self.is_wait_measured = False
        self.early_ns = np.zeros((len(CELL_ROWS) + 1, 0))
        """Rows and the waiting, of the first EARLY_STEPS steps."""
        self._median_ns = np.zeros(axis.num_cells)
        self._largest_ns = np.zeros(axis.num_cells, np.int64)

    def add(self, records: Records) -> None:
        """Steady steps, in order. Those beyond the axis are left out."""
        in_axis = int(np.searchsorted(records.sequences, self.axis.steps_per_cell * self.axis.num_cells))
        if in_axis == 0:
            return
        cells = records.sequences[:in_axis] // self.axis.steps_per_cell
        starts = np.concatenate([_FIRST, np.flatnonzero(cells[1:] != cells[:-1]) + 1])
        places = cells[starts]
        counts = np.concatenate([starts[1:], [in_axis]]) - starts
        rows, waited = with_residual(records.values[:, :in_axis]), waited_ns(records)[:in_axis]
        totals = np.add.reduceat(rows, starts, axis=1)
        self.waited_ns[places] += np.add.reduceat(waited, starts)
        self.is_wait_measured = self.is_wait_measured or bool((records.tags[:in_axis] >= _ANY_WAIT).any())
        self._take_early(rows, waited)
        steps = records.values[NUM_VALUES - 1, :in_axis]
        self.counts[places] += counts
        self.total_ns[:, places] += totals
        self._largest_ns[places] = np.maximum(self._largest_ns[places], np.maximum.reduceat(steps, starts))
        # A cell that two pieces share gets the mean of their medians, weighted: far inside what a chart shows.
        self._median_ns[places] += counts * _medians(steps, starts, counts)

    def _take_early(self, rows: Integers, waited: Integers) -> None:
        missing = EARLY_STEPS - self.early_ns.shape[1]
        if missing > 0:
            more = np.vstack([rows[:, :missing], waited[:missing]])
            self.early_ns = np.concatenate([self.early_ns, more], axis=1)

    def median_step_ms(self) -> Floats:
        """NaN where a cell has no step."""
        return _per_step(self._median_ns, self.counts)

    def largest_step_ms(self) -> Floats:
        """NaN where a cell has no step."""
        return np.where(self.counts > 0, self._largest_ns / 1e6, np.nan)


def with_residual(values: Integers) -> Integers:
    """Rows by CELL_ROWS from the values (6, n) of step records; what was not measured counts as 0."""
    rows = np.empty((len(CELL_ROWS), values.shape[1]), np.int64)
    np.maximum(values[: len(PHASES)], 0, out=rows[: len(PHASES)])
    rows[_STEP] = values[len(PHASES)]
    np.subtract(rows[_STEP], rows[: len(PHASES)].sum(axis=0), out=rows[_STEP - 1])
    np.maximum(rows[_STEP - 1], 0, out=rows[_STEP - 1])
    return rows


def waited_ns(records: Records) -> Integers:
    """By step: the part of its backward that was spent waiting for other ranks; 0 where it was not measured."""
    levels = np.maximum((records.tags >> WAIT_SHIFT).astype(np.int64) - 1, 0)
    waited: Integers = np.maximum(records.values[PHASES.index("backward")], 0) * levels // MAX_WAIT_LEVEL
    return waited


def _medians(values: Integers, starts: Integers, counts: Integers) -> Floats:
    """Of each run of values, by one sort: rows of equal length, padded with what sorts last."""
    if len(starts) == len(values):
        return values.astype(np.float64)
    rows = np.full((len(starts), int(counts.max())), np.iinfo(np.int64).max)
    row_of = np.repeat(np.arange(len(starts)), counts)
    rows[row_of, np.arange(len(values)) - np.repeat(starts, counts)] = values
    rows.sort(axis=1)
    index = np.arange(len(starts))
    medians: Floats = (rows[index, (counts - 1) // 2] + rows[index, counts // 2]) / 2.0
    return medians


def _per_step(totals_ns: npt.NDArray[np.float64] | Integers, counts: Integers) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = np.where(counts > 0, totals_ns / (counts * 1e6), np.nan)
    return means
