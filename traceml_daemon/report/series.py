"""Makes the `series` of the summary from cells and samples; see `measured_form` for what they are.

Spans of time are equal, since training started, and the same for all ranks and nodes of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceml_client.protocol.columns import DEVICE_MEMORY_SAMPLE, NODE_SAMPLE, PROCESS_SAMPLE
from traceml_daemon.report.cells import CELL_ROWS, CellAxis, Floats, StepCells, most_cells
from traceml_daemon.report.facts import AttemptFacts
from traceml_daemon.report.measured_form import Line, NodeSeries, RankSeries, Series
from traceml_daemon.report.measurements import Integers
from traceml_daemon.report.samples import RankSamples
from traceml_daemon.report.statistics import MAX_UNUSUAL

_MIN_SPAN_S = 0.5
"""Samples come twice a second at most."""


@dataclass(frozen=True, slots=True)
class SpanAxis:
    """Span i begins i * seconds_per_span after `start_ns` (wall clock of the daemon's host)."""

    start_ns: int
    seconds_per_span: float
    num_spans: int

    @classmethod
    def covering(cls, start_ns: int, end_ns: int, num_ranks: int) -> SpanAxis:
        duration_s = max(0.0, (end_ns - start_ns) / 1e9)
        width_s = max(_MIN_SPAN_S, duration_s / most_cells(num_ranks))
        return cls(start_ns, round(width_s, 3), 1 + int(duration_s / width_s))

    def middles_s(self) -> tuple[float, ...]:
        return tuple(round((i + 0.5) * self.seconds_per_span, 2) for i in range(self.num_spans))

    def largest(self, attempt: AttemptFacts, ends_ns: Integers, values: Integers) -> Floats:
        """The largest value of each span, NaN where there is none. `ends_ns`: the rank's monotonic clock."""
        wall_ns = ends_ns + (attempt.wall_minus_monotonic_ns + attempt.clock_offset_ns - self.start_ns)
        places = np.clip(wall_ns // int(self.seconds_per_span * 1e9), 0, self.num_spans - 1)
        found = np.full(self.num_spans, -np.inf)
        np.maximum.at(found, places, values.astype(np.float64))
        return np.where(np.isneginf(found), np.nan, found)


_DIGITS: Final = 4
_MIB: Final = 1 << 20


def rank_series(cells: StepCells, samples: RankSamples, attempt: AttemptFacts, axis: SpanAxis) -> RankSeries:
    rss, device = samples.column(PROCESS_SAMPLE, 1), samples.column(DEVICE_MEMORY_SAMPLE, 1)
    return RankSeries(
        rank=attempt.place.rank,
        step_ms=line(cells.median_step_ms()),
        step_max_ms=line(cells.largest_step_ms()),
        rss_mib=line(axis.largest(attempt, *rss) / _MIB),
        device_mib=line(axis.largest(attempt, *device) / _MIB),
    )


def node_series(samples: RankSamples, attempt: AttemptFacts, axis: SpanAxis) -> NodeSeries | None:
    """Null where this rank did not sample its node."""
    cpu, used = samples.column(NODE_SAMPLE, 0), samples.column(NODE_SAMPLE, 1)
    if len(used[0]) == 0:
        return None
    return NodeSeries(
        node_rank=attempt.incarnation.node_index,
        cpu_percent=line(axis.largest(attempt, *cpu) / 10.0),
        memory_used_mib=line(axis.largest(attempt, *used) / _MIB),
    )


def phase_lines(cells: Iterable[StepCells], axis: CellAxis) -> dict[str, Line]:
    """The mean step of each cell over all ranks, divided into phases."""
    counts = np.zeros(axis.num_cells, np.int64)
    total_ns = np.zeros((len(CELL_ROWS), axis.num_cells), np.int64)
    for each in cells:
        counts += each.counts
        total_ns += each.total_ns
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_ms = np.where(counts > 0, total_ns / (1e6 * counts), np.nan)
    return {name: line(row) for name, row in zip(CELL_ROWS, mean_ms, strict=True)}


def series(
    axis: CellAxis,
    spans: SpanAxis,
    phase_ms: dict[str, Line],
    unusual_steps: Iterable[int],
    ranks: Iterable[RankSeries],
    nodes: Iterable[NodeSeries],
) -> Series:
    return Series(
        steps_per_cell=axis.steps_per_cell,
        first_steps=tuple(range(1, 1 + axis.steps_per_cell * axis.num_cells, axis.steps_per_cell)),
        phase_ms=phase_ms,
        unusual_steps=tuple(sorted(set(unusual_steps))[:MAX_UNUSUAL]),
        seconds_per_span=spans.seconds_per_span,
        times_s=spans.middles_s(),
        ranks=tuple(ranks),
        nodes=tuple(nodes),
    )


def line(values: Floats) -> Line:
    """Four significant digits of the largest value; null for NaN; empty if there is nothing else."""
    is_known = ~np.isnan(values)
    if not is_known.any():
        return ()
    largest = float(np.abs(values[is_known]).max())
    num_decimals = _DIGITS - 1 - math.floor(math.log10(largest)) if largest > 0 else 0
    rounded: list[float | None] = np.round(values, max(0, num_decimals)).tolist()
    if not is_known.all():
        rounded = [None if value != value else value for value in rounded]
    return tuple(rounded)
