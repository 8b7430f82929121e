"""Percentiles of any number of durations in bounded memory.

Up to a quarter of a million values are kept and give exact percentiles, so that a person finds the same figures with
plain SQL. Beyond that they are counted in bins that are 0.1 % wide: a bin is the exponent and the upper ten bits of the
mantissa of the value as a float, which numpy finds without a logarithm.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

MAX_EXACT: Final = 1 << 18
"""2 MB; a run of 70 hours at one step a second."""
_MANTISSA_SHIFT: Final = 52 - 10
_QUANTILES: Final = (0.50, 0.95, 0.99)

Integers = npt.NDArray[np.int64]


class Distribution:
    """Counts, sum and percentiles of non-negative integers."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self._values: list[Integers] = []
        self._num_values = 0
        self._bins: Integers | None = None
        self._first_bin = 0

    def add(self, values: Integers) -> None:
        self.count += len(values)
        self.total += int(values.sum())
        self._values.append(values)
        self._num_values += len(values)
        if self._num_values > MAX_EXACT:
            self._count_into_bins()

    def percentiles(self) -> tuple[float, float, float]:
        """(p50, p95, p99). Raises ValueError if nothing was added."""
        if self.count == 0:
            raise ValueError("percentiles of nothing")
        if self._bins is None:
            return _exact(np.concatenate(self._values))
        self._count_into_bins()
        ranks = [int(q * (self.count - 1)) for q in _QUANTILES]
        places = np.searchsorted(np.cumsum(self._bins), ranks, side="right") + self._first_bin
        edges = np.stack([places, places + 1]).astype(np.int64) << _MANTISSA_SHIFT
        p50, p95, p99 = edges.view(np.float64).mean(axis=0)
        return float(p50), float(p95), float(p99)

    def _count_into_bins(self) -> None:
        """Move the kept values into bins."""
        if not self._values:
            return
        kept = np.maximum(np.concatenate(self._values), 1)  # 0 ns as 1 ns: its bits are a million bins away
        places = kept.astype(np.float64).view(np.int64) >> _MANTISSA_SHIFT
        self._values, self._num_values = [], 0
        first, last = int(places.min()), int(places.max())
        if self._bins is None:
            self._bins, self._first_bin = np.zeros(last - first + 1, np.int64), first
        self._make_room(first, last)
        counts = np.bincount(places - first)
        start = first - self._first_bin
        self._bins[start : start + len(counts)] += counts

    def _make_room(self, first: int, last: int) -> None:
        assert self._bins is not None
        before = max(0, self._first_bin - first)
        after = max(0, last - (self._first_bin + len(self._bins) - 1))
        if before or after:
            self._bins = np.pad(self._bins, (before, after))
            self._first_bin -= before


def _exact(values: Integers) -> tuple[float, float, float]:
    """Sorts them. Linear interpolation between neighbours, as numpy's percentile, which costs ten times as much."""
    values.sort()
    p50, p95, p99 = (_between(values, q * (len(values) - 1)) for q in _QUANTILES)
    return p50, p95, p99


def _between(ordered: Integers, place: float) -> float:
    low = int(place)
    below, above = int(ordered[low]), int(ordered[min(low + 1, len(ordered) - 1)])
    return below + (place - low) * (above - below)
