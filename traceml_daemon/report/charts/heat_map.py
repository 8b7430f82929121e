"""Rank x step: how each rank's steps compare with the run's median, one colour for each range."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from traceml_daemon.report.charts.axes import SIZE, Chart, Key, Shape, Tick
from traceml_daemon.report.measured_form import Line

MAX_ROWS: Final = 128
"""A row is at least a few pixels high; of more ranks several share one, and the slowest of them shows."""
_BOUNDS: Final = (0.8, 0.95, 1.05, 1.2, 1.5, 2.0, 4.0)
_LABELS: Final = ("below 0.8", "0.8-0.95", "0.95-1.05", "1.05-1.2", "1.2-1.5", "1.5-2", "2-4", "above 4")
_MAX_LABELS: Final = 9
_ROW_PX: Final = 22
_MAX_PX: Final = 420


def heat_map(lines: Mapping[int, Line], x_ticks: tuple[Tick, ...]) -> Chart | None:
    """`lines`: rank to the median step of each cell. Null where nothing was measured, or by a single rank."""
    values = [value for line in lines.values() for value in line if value is not None]
    middle = statistics.median(values) if values else 0.0
    if middle <= 0 or len(lines) < 2:
        return None
    per_row = -(-len(lines) // MAX_ROWS)
    rows = _rows(lines, per_row)
    grouped = f" Each row is {per_row} ranks; the slowest of them shows." if per_row > 1 else ""
    return Chart(
        name="heat-map",
        title="Step time by rank and step",
        caption=f"As a multiple of the run's median, {middle:.4g} ms.{grouped}",
        shapes=tuple(_shapes(rows, middle)),
        x_ticks=x_ticks,
        y_ticks=_labels([first for first, _ in rows]),
        x_label="step",
        keys=tuple(Key(f"h{level}", label) for level, label in enumerate(_LABELS)),
        height_px=max(60, min(_ROW_PX * len(rows), _MAX_PX)),
        has_grid=False,
    )


def _rows(lines: Mapping[int, Line], per_row: int) -> list[tuple[int, Line]]:
    """(first rank, the largest value of each cell) of every group."""
    ranks = sorted(lines)
    rows = []
    for start in range(0, len(ranks), per_row):
        group = [lines[rank] for rank in ranks[start : start + per_row] if lines[rank]]
        cells = zip(*group, strict=False)
        rows.append((ranks[start], tuple(max((v for v in cell if v is not None), default=None) for cell in cells)))
    return rows


def _shapes(rows: list[tuple[int, Line]], middle: float) -> list[Shape]:
    """One path for each colour; neighbours of one colour are one box."""
    paths: dict[int, list[str]] = defaultdict(list)
    height = SIZE / len(rows)
    num_cells = max(len(line) for _, line in rows)
    for place, (_, line) in enumerate(rows):
        levels = [None if value is None else bisect_right(_BOUNDS, value / middle) for value in line]
        start = 0
        for cell in range(1, len(levels) + 1):
            if cell == len(levels) or levels[cell] != levels[start]:
                level = levels[start]
                if level is not None:
                    x, width = SIZE * start / num_cells, SIZE * (cell - start) / num_cells
                    paths[level].append(f"M{x:.4g} {place * height:.4g}h{width:.4g}v{height:.4g}h-{width:.4g}z")
                start = cell
    return [Shape(f"heat h{level}", "".join(paths[level])) for level in sorted(paths)]


def _labels(first_ranks: list[int]) -> tuple[Tick, ...]:
    """Every so many rows, at the middle of the row."""
    every = -(-len(first_ranks) // _MAX_LABELS)
    return tuple(
        Tick(100 * (1 - (place + 0.5) / len(first_ranks)), f"rank {first_ranks[place]}")
        for place in range(0, len(first_ranks), every)
    )
