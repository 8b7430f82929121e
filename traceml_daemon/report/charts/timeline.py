"""When each attempt of each rank began and was last heard of, where it stalled, and how it ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Final, NamedTuple

from traceml_daemon.diagnosis.wording import ranks_text
from traceml_daemon.report.charts.axes import SIZE, Chart, Key, Shape, Tick, box_path, time_ticks
from traceml_daemon.report.form import AttemptSection, FinalSummary
from traceml_daemon.report.measured_form import RankSeries

MAX_ROWS: Final = 24
_SAME_PLACE: Final = 0.02
"""Ranks that began and ended within this share of the run of each other, and alike, are one row."""
_STALL: Final = 10.0
"""A step of so many times the run's median is a stall,"""
_MIN_STALL_MS: Final = 500.0
"""unless nobody would have noticed it."""
_MAX_STALLS: Final = 40
_ROW_PX: Final = 24
_ENDS: Final = {
    "finished": ("a-finished", "finished"),
    "first": ("a-failed", "failed first"),
    "failed": ("a-ended", "ended with an error or was killed"),
}
_OTHER: Final = ("a-lost", "ended without a marker")


class _Bar(NamedTuple):
    start_s: float
    end_s: float
    ending: str


@dataclass(slots=True)
class _Row:
    ranks: list[int]
    bars: tuple[_Bar, ...]
    stalls_s: tuple[float, ...]


def timeline(summary: FinalSummary) -> Chart | None:
    """Null where no rank was seen."""
    start = _seconds(summary.training.started_at)
    rows = list(_rows(summary, start or 0.0))
    end_s = max((bar.end_s for row in rows for bar in row.bars), default=0.0)
    if start is None or end_s <= 0:
        return None
    ended = _seconds(summary.training.ended_at)
    end_s = max(end_s, (ended or start) - start)
    rows = _grouped(rows, end_s)
    shown, hidden = rows[:MAX_ROWS], rows[MAX_ROWS:]
    more = f" Not shown: {ranks_text(rank for row in hidden for rank in row.ranks)}." if hidden else ""
    shapes = tuple(_shapes(shown, end_s))
    return Chart(
        name="timeline",
        title="Attempts, stalls and deaths",
        caption=f"From an attempt's first record to its last.{more}",
        shapes=shapes,
        x_ticks=time_ticks(end_s),
        y_ticks=tuple(
            Tick(100 * (1 - (place + 0.5) / len(shown)), ranks_text(row.ranks)) for place, row in enumerate(shown)
        ),
        x_label="since training started",
        keys=tuple(_keys(shapes)),
        height_px=_ROW_PX * len(shown),
    )


def _rows(summary: FinalSummary, start: float) -> Iterator[_Row]:
    series = {each.rank: each for each in summary.series.ranks}
    medians = [v for each in summary.series.ranks for v in each.step_ms if v is not None]
    bound_ms = max(_MIN_STALL_MS, _STALL * statistics.median(medians)) if medians else float("inf")
    failure = summary.failure
    for rank in summary.ranks:
        first = failure.attempt if failure is not None and failure.initiating_rank == rank.rank else None
        bars = tuple(_bar(each, start, first) for each in rank.attempts if each.first_at is not None)
        if bars:
            stalls = _stalls(series.get(rank.rank), bars[-1], bound_ms, summary.series.steps_per_cell)
            yield _Row([rank.rank], bars, tuple(stalls))


def _bar(attempt: AttemptSection, start: float, failed_first: int | None) -> _Bar:
    begin, last = (_seconds(time) or start for time in (attempt.first_at, attempt.last_at))
    is_killed = attempt.exit_code is None and attempt.why is not None and attempt.state != "finished"
    ending = "failed" if attempt.exit_code or is_killed else attempt.state
    ending = "first" if attempt.attempt == failed_first else ending
    return _Bar(max(0.0, begin - start), max(0.0, last - start), ending)


def _stalls(series: RankSeries | None, bar: _Bar, bound_ms: float, steps_per_cell: int) -> Iterator[float]:
    """About when: the steps' own times laid end to end between the attempt's first and last sign."""
    if series is None or not series.step_ms:
        return
    cells = zip(series.step_ms, series.step_max_ms, strict=True)
    cell_s = [((median or 0.0) * (steps_per_cell - 1) + (largest or 0.0)) / 1e3 for median, largest in cells]
    total_s = sum(cell_s)
    scale = (bar.end_s - bar.start_s) / total_s if total_s > 0 else 0.0
    for after_s, largest_ms in zip(accumulate(cell_s), series.step_max_ms, strict=True):
        if largest_ms is not None and largest_ms >= bound_ms:
            yield bar.start_s + scale * after_s


def _grouped(rows: Iterable[_Row], end_s: float) -> list[_Row]:
    """Ranks that look alike in one row: the one that failed first, the others that failed, the rest."""
    groups: dict[object, _Row] = {}
    for row in rows:
        places = tuple(round(t / (_SAME_PLACE * end_s)) for bar in row.bars for t in (bar.start_s, bar.end_s))
        likeness = (places, tuple(bar.ending for bar in row.bars), bool(row.stalls_s))
        if likeness in groups:
            groups[likeness].ranks += row.ranks
        else:
            groups[likeness] = row

    def place(row: _Row) -> tuple[bool, bool, list[int]]:
        endings = {bar.ending for bar in row.bars}
        return endings == {"finished"}, "first" not in endings, row.ranks

    return sorted(groups.values(), key=place)


def _shapes(rows: Sequence[_Row], end_s: float) -> Iterator[Shape]:
    height = SIZE / len(rows)
    for place, row in enumerate(rows):
        top = (place + 0.2) * height
        for number, bar in enumerate(row.bars):
            css, words = _ENDS.get(bar.ending, _OTHER)
            x, width = SIZE * bar.start_s / end_s, max(2.0, SIZE * (bar.end_s - bar.start_s) / end_s - 1)
            title = f"{ranks_text(row.ranks)}, attempt {number}: {words}, {bar.start_s:.1f} to {bar.end_s:.1f} s"
            yield Shape(
                f"fill {css}", box_path(round(x, 1), round(top, 1), round(width, 1), round(0.6 * height, 1)), title
            )
            if bar.ending != "finished":
                yield Shape("death", _upright(bar.end_s / end_s, place * height, height), title)
        for stall_s in row.stalls_s[:_MAX_STALLS]:
            title = f"{ranks_text(row.ranks)}: a stall about {stall_s:.1f} s after the start"
            yield Shape("stall", _upright(stall_s / end_s, place * height, height), title)


def _upright(share: float, top: float, height: float) -> str:
    return f"M{min(SIZE - 1, SIZE * share):.4g} {top:.4g}v{height:.4g}"


def _keys(shapes: Iterable[Shape]) -> Iterator[Key]:
    used = {shape.css.removeprefix("fill ") for shape in shapes}
    every = (
        *_ENDS.values(),
        _OTHER,
        ("death", "last sign before a death"),
        ("stall", "a step of ten times the median"),
    )
    return (Key(css, words) for css, words in every if css in used)


def _seconds(time: str | None) -> float | None:
    return None if time is None else datetime.fromisoformat(time).timestamp()
