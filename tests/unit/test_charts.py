"""Charts as numbers: ticks, gaps, bands, the map of ranks and steps, and the timeline."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.harness import reports
from traceml_daemon.report.charts.axes import line_path, nice_steps, step_ticks, time_ticks, value_ticks
from traceml_daemon.report.charts.heat_map import heat_map
from traceml_daemon.report.charts.lines import phases_over_time, rank_chart
from traceml_daemon.report.charts.timeline import timeline


@pytest.mark.parametrize("largest", [1e-9, 0.013, 0.9999, 1, 7, 99.5, 123456.0, 1e15])
def test_ticks_are_round_few_and_inside(largest: float) -> None:
    values = nice_steps(largest, most=4)
    assert 3 <= len(values) <= 5
    assert values[0] == 0
    assert values[-1] <= largest * (1 + 1e-9)
    assert all(0 <= tick.place_pct <= 100.001 for tick in value_ticks(largest, "ms"))


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 100, 99_999])
def test_steps_are_whole_and_named_once(num_steps: int) -> None:
    labels = [tick.label for tick in step_ticks(num_steps)]
    assert labels[0] == "1"
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"[\d,]+", label) for label in labels)


@pytest.mark.parametrize(
    ("duration_s", "unit"), [(0.0, "s"), (90, "s"), (600, "min"), (36_000, "h"), (10 * 86_400, "d")]
)
def test_time_is_in_a_unit_that_fits(duration_s: float, unit: str) -> None:
    assert {tick.label.split()[1] for tick in time_ticks(duration_s)} == {unit}


def test_a_null_is_a_gap_and_a_lonely_point_a_dot() -> None:
    assert line_path((1.0, 1.0, None, 1.0), 2.0) == "M125 500L375 500M875 500h0"
    assert line_path((1.0,), 2.0) == "M0 500h1000"
    assert line_path((None, None), 2.0) == ""


def test_a_stall_does_not_flatten_the_rest_and_is_told() -> None:
    chart = rank_chart("x", "X", "ms", {0: (1.0,) * 20 + (500.0,)}, (), "step")
    assert chart is not None
    assert chart.caption == "Cut at 4 ms; the largest value is 500 ms."


def test_many_ranks_are_a_band_and_those_that_stand_out() -> None:
    lines = {rank: (1.0 if rank != 17 else 2.0,) * 3 for rank in range(64)}
    chart = rank_chart("x", "X", "ms", lines, (), "step", {"validation": (0.5,)})
    assert chart is not None
    assert [key.label for key in chart.keys] == ["all 64 ranks", "their median", "rank 17", "validation"]
    assert rank_chart("x", "X", "ms", {0: (None, None), 1: ()}, (), "step") is None


def test_the_map_names_rows_and_joins_equal_neighbours() -> None:
    chart = heat_map({0: (10.0,) * 8, 1: (10.0, 10.0, None, 30.0, 30.0, 30.0, 10.0, 10.0)}, ())
    assert chart is not None
    assert [tick.label for tick in chart.y_ticks] == ["rank 0", "rank 1"]
    assert {shape.css: shape.path.count("M") for shape in chart.shapes} == {"heat h2": 3, "heat h6": 1}
    assert heat_map({0: (10.0,)}, ()) is None


def test_phases_stack_up_to_the_step() -> None:
    chart = phases_over_time({"forward": (1.0, 1.0), "residual": (3.0, 3.0), "h2d": (), "step": (4.0, 4.0)}, ())
    assert chart is not None
    assert [shape.title for shape in chart.shapes] == ["forward", "residual"]
    assert chart.shapes[1].path == "M250 91L750 91L750 773L250 773z"
    assert phases_over_time({"step": ()}, ()) is None


def test_the_timeline_tells_deaths_and_stalls(tmp_path: Path) -> None:
    chart = timeline(reports.failed(tmp_path))
    assert chart is not None
    labels = {"failed first", "ended with an error or was killed", "last sign before a death"}
    assert {key.label for key in chart.keys} == labels
    assert [tick.label for tick in chart.y_ticks] == ["rank 1", "ranks 0, 2"]
    css = {shape.title.partition(":")[0]: shape.css for shape in chart.shapes if shape.css.startswith("fill ")}
    assert (css["rank 1, attempt 1"], css["ranks 0, 2, attempt 0"]) == ("fill a-failed", "fill a-ended")

    healthy = reports.healthy(tmp_path)
    stalled = tuple(
        msgspec.structs.replace(each, step_max_ms=(*each.step_max_ms[:-1], 30_000.0)) for each in healthy.series.ranks
    )
    chart = timeline(msgspec.structs.replace(healthy, series=msgspec.structs.replace(healthy.series, ranks=stalled)))
    assert chart is not None
    assert [tick.label for tick in chart.y_ticks] == ["ranks 0-3"]
    (stall,) = [shape for shape in chart.shapes if shape.css == "stall"]
    assert float(stall.path[1:].split()[0]) > 900
