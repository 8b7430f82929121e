"""Where the time of a step goes: one bar of shares, and the same over the run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from traceml_daemon.report.charts.axes import SIZE, Chart, Key, Shape, Tick, area_path, box_path, value_ticks
from traceml_daemon.report.form import PHASE_NAMES, Phases
from traceml_daemon.report.series_form import Line

_PARTS = PHASE_NAMES[:-1]


def share_bar(phases: Phases) -> Chart | None:
    """Null where no step was measured."""
    shares = {name: times.share for name in _PARTS if (times := phases.get(name)) is not None}
    total = sum(shares.values())
    if total <= 0:
        return None
    shapes, start = [], 0.0
    for name, share in shares.items():
        width = SIZE * share / total
        shapes.append(
            Shape(f"fill p-{name}", box_path(round(start, 1), 0, round(width, 1), SIZE), f"{name} {share:.1%}")
        )
        start += width
    return Chart(
        name="shares",
        title="Shares of a step",
        shapes=tuple(shapes),
        keys=tuple(Key(f"p-{name}", f"{name} {share:.1%}") for name, share in shares.items()),
        height_px=40,
        has_grid=False,
    )


def phases_over_time(phase_ms: Mapping[str, Line], x_ticks: tuple[Tick, ...]) -> Chart | None:
    """Stacked areas of the mean step. Null where no step was measured."""
    whole = phase_ms.get("step", ())
    measured = [value for value in whole if value is not None]
    if not measured or max(measured) <= 0:
        return None
    names = [name for name in _PARTS if any(phase_ms.get(name, ()))]
    stacks = _stacked([phase_ms[name] for name in names], len(whole))
    largest = 1.1 * max(measured)
    return Chart(
        name="phases",
        title="Phases over the run",
        caption="Mean over all ranks.",
        shapes=tuple(
            Shape(f"fill p-{name}", area_path(lower, upper, largest), name)
            for name, (lower, upper) in zip(names, pairwise(stacks), strict=True)
        ),
        keys=tuple(Key(f"p-{name}", name) for name in names),
        x_ticks=x_ticks,
        y_ticks=value_ticks(largest, "ms"),
        x_label="step",
    )


def _stacked(lines: list[Line], length: int) -> list[list[float | None]]:
    """The edges between the areas, the lowest first."""
    edges: list[list[float | None]] = [[0.0] * length]
    for line in lines:
        edges.append(
            [None if low is None or value is None else low + value for low, value in zip(edges[-1], line, strict=True)]
        )
    return edges
