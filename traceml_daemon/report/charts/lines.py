"""Lines over the run: one for each rank, of many ranks a band and those that stand out; and the phases of a step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from traceml_daemon.diagnosis.wording import ranks_text
from traceml_daemon.report.charts.axes import SIZE, Chart, Key, Shape, Tick, area_path, box_path, line_path, value_ticks
from traceml_daemon.report.form import PHASE_NAMES, Phases
from traceml_daemon.report.measured_form import Line

MAX_LINES: Final = 8
"""More lines than this cannot be told apart; they become a band."""
_MAX_OUTSTANDING: Final = 3
_STANDS_OUT: Final = 1.05
_MARK: Final = 60
"""Height of a mark."""
_MAX_BRIDGE: Final = 3
_CUT: Final = 4.0
"""A chart ends at so many times the median: one stall would press everything else against the axis."""


def rank_chart(
    name: str,
    title: str,
    unit: str,
    lines: Mapping[int, Line],
    x_ticks: tuple[Tick, ...],
    x_label: str,
    marks: Mapping[str, Sequence[float]] | None = None,
) -> Chart | None:
    """Null where no rank measured anything.

    `lines`: rank to values over one axis; `marks`: words to places on that axis, 0 to 1, that are marked below.
    """
    measured = {rank: _bridged(line) for rank, line in lines.items() if any(value is not None for value in line)}
    if not measured:
        return None
    values = [value for line in measured.values() for value in line if value is not None]
    largest, cut_note = _largest(values, unit)
    shapes, keys, note = _lines(measured, largest) if len(measured) <= MAX_LINES else _band(measured, largest)
    marked = {words: places for words, places in (marks or {}).items() if places}
    return Chart(
        name=name,
        title=title,
        caption=" ".join(sentence for sentence in (note, cut_note) if sentence),
        shapes=(*shapes, *(Shape("mark", _mark_path(places), words) for words, places in marked.items())),
        keys=(*keys, *(Key("mark", words) for words in marked)),
        x_ticks=x_ticks,
        y_ticks=value_ticks(largest, unit),
        x_label=x_label,
    )


def _mark_path(places: Sequence[float]) -> str:
    return "".join(f"M{SIZE * place:.4g} {SIZE - _MARK}v{_MARK}" for place in places)


def _bridged(line: Line) -> Line:
    """Samples that come less often than the axis counts are one line all the same; a long silence is a gap."""
    bridged, before = list(line), None
    for place, value in enumerate(line):
        if value is None:
            continue
        if before is not None and place - before <= max(_MAX_BRIDGE, len(line) // 20):
            start = line[before]
            assert start is not None
            for between in range(before + 1, place):
                bridged[between] = start + (value - start) * (between - before) / (place - before)
        before = place
    return tuple(bridged)


def _largest(values: Sequence[float], unit: str) -> tuple[float, str]:
    top, middle = max(values), statistics.median(values)
    if middle > 0 and top > _CUT * middle:
        return _CUT * middle, f"Cut at {_CUT * middle:.3g} {unit}; the largest value is {top:.4g} {unit}."
    return (1.1 * top or 1.0), ""


def _lines(lines: Mapping[int, Line], largest: float) -> tuple[tuple[Shape, ...], tuple[Key, ...], str]:
    shapes = tuple(
        Shape(f"line r{place}", line_path(line, largest), f"rank {rank}")
        for place, (rank, line) in enumerate(lines.items())
    )
    return shapes, tuple(Key(f"r{place}", f"rank {rank}") for place, rank in enumerate(lines)), ""


def _band(lines: Mapping[int, Line], largest: float) -> tuple[tuple[Shape, ...], tuple[Key, ...], str]:
    length = max(map(len, lines.values()))
    columns = [[v for line in lines.values() if i < len(line) and (v := line[i]) is not None] for i in range(length)]
    lower, middle, upper = ([pick(c) if c else None for c in columns] for pick in (min, statistics.median, max))
    shapes = [
        Shape("band", area_path(lower, upper, largest), "smallest to largest of all ranks"),
        Shape("line middle", line_path(middle, largest), "median of all ranks"),
    ]
    keys = [Key("band", f"all {len(lines)} ranks"), Key("middle", "their median")]
    outstanding = outstanding_ranks(lines)
    for place, rank in enumerate(outstanding, 1):
        shapes.append(Shape(f"line r{place}", line_path(lines[rank], largest), f"rank {rank}"))
        keys.append(Key(f"r{place}", f"rank {rank}"))
    note = f"Highest: {ranks_text(outstanding)}." if outstanding else "No rank stands out."
    return tuple(shapes), tuple(keys), note


def outstanding_ranks(lines: Mapping[int, Line]) -> list[int]:
    """The few ranks whose median is the highest, if that is above the middle of all ranks."""
    medians = {r: statistics.median(kept) for r, line in lines.items() if (kept := [v for v in line if v is not None])}
    if not medians:
        return []
    middle = statistics.median(medians.values())
    highest = sorted(medians, key=lambda rank: -medians[rank])[:_MAX_OUTSTANDING]
    return [rank for rank in highest if medians[rank] > _STANDS_OUT * middle]


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
