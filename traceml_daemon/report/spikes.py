"""Finds the steps of a rank that are far longer than their neighbours, and keeps the first of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceml_client.protocol.columns import IS_UNUSUAL, PHASES
from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.profile import BACKWARD, WAITING, Spikes
from traceml_daemon.report.cells import waited_ns, with_residual
from traceml_daemon.report.measurements import Integers, Mask, Records

_NEIGHBOURS: Final = 32
MAX_KEPT: Final = 512
"""Of a rank: enough to see a rhythm, and 16 KB."""


class SpikeFinder:
    """Filled piece by piece; every step counts but warm-up and skipped ones."""

    def __init__(self) -> None:
        self.elapsed_ns = 0
        self._found: list[tuple[Integers, Integers, Integers, Mask]] = []
        self._num_kept = 0

    def add(self, records: Records) -> None:
        steps = records.values[len(PHASES)]
        self.elapsed_ns += int(steps.sum())
        is_unusual = (records.tags & IS_UNUSUAL) > 0
        excess = steps - _baseline(steps)
        is_long = excess > (policy.SPIKE_FACTOR - 1.0) * (steps - excess)
        places = np.flatnonzero(is_long | is_unusual)[: MAX_KEPT - self._num_kept]
        if len(places) == 0:
            return
        self._num_kept += len(places)
        rows = _own_rows(records, places)
        usual = np.median(_own_rows(records, slice(None, None, -(-len(steps) // 1024))), axis=1)
        dominant = np.argmax(rows - usual[:, None], axis=0)
        self._found.append((records.sequences[places] + 1, excess[places], dominant, is_unusual[places]))

    def spikes(self) -> Spikes:
        none = np.empty(0, np.int64)
        steps, excess, rows, is_unusual = (
            np.concatenate(column) for column in zip(*self._found, (none, none, none, none.astype(bool)), strict=True)
        )
        return Spikes(steps=steps, excess_ms=excess / 1e6, rows=rows, is_unusual=is_unusual.astype(bool))


def _baseline(steps: Integers) -> Integers:
    """By step: the median of its block of 32."""
    count = len(steps)
    if count < 2 * _NEIGHBOURS:
        return np.full(count, int(np.median(steps)) if count else 0, np.int64)
    num_whole = count // _NEIGHBOURS
    whole = np.sort(steps[: num_whole * _NEIGHBOURS].reshape(num_whole, _NEIGHBOURS), axis=1)[:, _NEIGHBOURS // 2]
    rest = np.median(steps[-_NEIGHBOURS:])
    return np.concatenate([np.repeat(whole, _NEIGHBOURS), np.full(count - num_whole * _NEIGHBOURS, int(rest))])


def _own_rows(records: Records, places: Integers | slice) -> Integers:
    """Rows of OWN_PHASES and the waiting."""
    rows = with_residual(records.values[:, places])
    waited = waited_ns(records)[places]
    rows[BACKWARD] -= waited
    rows[WAITING] = waited  # in place of the whole step
    return rows
