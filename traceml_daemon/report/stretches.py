"""A run's steps as histograms of cells: a cell is a stretch of steps of a group of ranks.

What a bootstrap draws again must be larger than what hangs together. Steps hang together over time, so a cell is a
twentieth of the run; ranks hang together within a step (they wait for one another), so a stretch is one for all ranks.
The memory is bounded whatever the run's length; a figure that is read from a histogram is right to 0.2 %.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
