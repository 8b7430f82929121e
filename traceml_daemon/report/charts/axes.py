"""What every chart is made of: shapes in a square of 1000 units, which the page stretches, and labels in percent.

Labels are text of the page and not of the drawing, so that they keep their size on a phone and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

SIZE: Final = 1000


class Tick(NamedTuple):
    place_pct: float
    """From the left, or from the bottom."""
    label: str


class Shape(NamedTuple):
    """One SVG path. `css`: how the style sheet calls its colour."""

    css: str
    path: str
    title: str = ""


class Key(NamedTuple):
    """One entry of a legend."""

    css: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    name: str
    """Its id on the page."""
    title: str
    caption: str = ""
    """What a reader who cannot see it needs to know, and what was left out or cut."""
    shapes: tuple[Shape, ...]
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()
    x_label: str = ""
    keys: tuple[Key, ...] = ()
    height_px: int = 220
    has_grid: bool = True

    @property
    def label_width(self) -> int:
        """In characters: room for the labels beside it."""
        return max((len(tick.label) for tick in self.y_ticks), default=0)


def nice_steps(largest: float, *, most: int) -> tuple[float, ...]:
    """Round numbers from 0 up to `largest`, at most `most` beside 0. `largest` is above 0."""
    raw = largest / most
    power = 10.0 ** math.floor(math.log10(raw))
    width = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    return tuple(i * width for i in range(int(largest / width + 1e-9) + 1))


def value_ticks(largest: float, unit: str) -> tuple[Tick, ...]:
    return tuple(Tick(100 * value / largest, f"{value:g} {unit}") for value in nice_steps(largest, most=4))


def step_ticks(num_steps: int) -> tuple[Tick, ...]:
    """Along an axis of step numbers from 1 to `num_steps`."""
    values = [max(1, round(value)) for value in nice_steps(max(num_steps, 1), most=5)]
    return tuple(Tick(100 * (value - 1) / max(1, num_steps), f"{value:,}") for value in dict.fromkeys(values))


def time_ticks(duration_s: float) -> tuple[Tick, ...]:
    """Along an axis of time from 0 to `duration_s`, in the largest unit that gives several."""
    unit_s, unit = next(
        (u for u in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")) if duration_s >= 2 * u[0]), (1, "s")
    )
    duration = max(duration_s, 1e-3) / unit_s
    return tuple(Tick(100 * value / duration, f"{value:g} {unit}") for value in nice_steps(duration, most=5))


def line_path(values: Sequence[float | None], largest: float) -> str:
    """Points at equal distances; a gap where a value is null. What is above `largest` is drawn at the upper edge."""
    parts, pen = [], "M"
    for x, y in _points(values, largest):
        if y is None:
            pen = "M"
            continue
        parts.append(f"{pen}{x} {y}")
        pen = "L"
        if len(values) == 1:
            parts.append(f"h{SIZE}")
    return _with_dots("".join(parts))


def area_path(lower: Sequence[float | None], upper: Sequence[float | None], largest: float) -> str:
    """Between two lines; where either is null there is a gap."""
    paths: list[str] = []
    forth: list[str] = []
    back: list[str] = []
    for (x, low), (_, high) in zip(_points(lower, largest), _points(upper, largest), strict=True):
        if low is None or high is None:
            paths.append(_closed(forth, back))
            forth, back = [], []
        else:
            forth.append(f"{x} {high}")
            back.append(f"{x} {low}")
    return "".join([*paths, _closed(forth, back)])


def box_path(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z"


def _points(values: Sequence[float | None], largest: float) -> Iterator[tuple[int, int | None]]:
    for place, value in enumerate(values):
        x = round(SIZE * (place + 0.5) / len(values)) if len(values) > 1 else 0
        yield x, None if value is None else round(SIZE * (1 - min(value / largest, 1)))


def _with_dots(path: str) -> str:
    """A point between two gaps is a line of no length, which round caps make a dot."""
    return "".join(
        f"M{part}h0" if part and "L" not in part and "h" not in part else f"M{part}" for part in path.split("M") if part
    )


def _closed(forth: list[str], back: list[str]) -> str:
    if not forth:
        return ""
    if len(forth) == 1:  # one cell between two gaps: as wide as a line
        forth, back = [forth[0], forth[0]], [back[0], back[0]]
    return f"M{'L'.join(forth)}L{'L'.join(reversed(back))}z"
