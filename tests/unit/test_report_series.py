"""What charts draw: cells of steps and spans of time, against plain arithmetic, and bounded for many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
import pytest

from tests.harness.database import MS, Content, Sample, Step, write_database
from tests.harness.facts import START_NS, Rank, run_facts
from traceml_client.protocol import columns
from traceml_daemon.report.measured_form import Series
from traceml_daemon.report.summary import build_summary

MIB = 1 << 20
S = 1_000_000_000


def series_of(path: Path, steps: Sequence[Sequence[Step]], samples: Sequence[Sample] = ()) -> Series:
    ranks = [Rank(rank=rank) for rank in range(len(steps))]
    contents = {
        rank.incarnation: Content(rank=rank.rank, steps=steps[rank.rank], samples=samples if rank.rank == 0 else ())
        for rank in ranks
    }
    facts = run_facts(ranks, status="completed", exit_code=0)
    return build_summary(write_database(path / "x.sqlite", contents), facts, None).series


def test_a_short_run_has_one_step_a_cell_and_holes_where_steps_are_not_steady(tmp_path: Path) -> None:
    plain = [Step(step=(10 + i) * MS) for i in range(6)]
    plain[0], plain[3] = Step(tag=columns.IS_WARMUP), Step(tag=columns.IS_UNUSUAL)
    series = series_of(tmp_path, [plain, [Step(step=20 * MS)] * 6])

    assert series.first_steps == (1, 2, 3, 4, 5, 6)
    assert series.ranks[0].step_ms == (None, 11.0, 12.0, None, 14.0, 15.0)
    assert series.ranks[1].step_ms == (20.0,) * 6
    assert series.phase_ms["step"] == (20.0, 15.5, 16.0, 20.0, 17.0, 17.5)
    assert (series.unusual_steps, series.phase_ms["h2d"]) == ((4,), ())
    measured = [line for name, line in series.phase_ms.items() if line and name != "step"]
    for cell in range(6):
        phases = [line[cell] for line in measured]
        assert sum(p for p in phases if p is not None) == pytest.approx(series.phase_ms["step"][cell], abs=0.01)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_a_cell_of_many_steps_has_their_median_and_largest(tmp_path: Path, chunk: int) -> None:
    durations = [MS * (1 + i * 7919 % 1000) for i in range(1000)]
    steps = [Step(step=d) for d in durations]
    ranks = [Rank(rank=0)]
    database = write_database(
        tmp_path / "x.sqlite", {ranks[0].incarnation: Content(rank=0, steps=steps)}, chunk_records=chunk
    )
    series = build_summary(database, run_facts(ranks, status="completed", exit_code=0), None).series

    width = series.steps_per_cell
    assert (width, len(series.first_steps)) == (5, 200)
    for cell, (middle, largest) in enumerate(zip(series.ranks[0].step_ms, series.ranks[0].step_max_ms, strict=True)):
        inside = durations[cell * width : (cell + 1) * width]
        assert (middle, largest) == pytest.approx((median(inside) / MS, max(inside) / MS), rel=1e-3)


def test_memory_by_rank_and_load_by_node_over_time(tmp_path: Path) -> None:
    samples = [
        Sample(kind=columns.PROCESS_SAMPLE, values=(0, (100 + i) * MIB), at_ns=START_NS + i * S) for i in range(30)
    ]
    samples.append(Sample(kind=columns.NODE_SAMPLE, values=(250, 2048 * MIB, 4096 * MIB), at_ns=START_NS + 29 * S))
    series = series_of(tmp_path, [[Step()] * 5, [Step()] * 5], samples)

    assert series.seconds_per_span == 0.5
    assert series.ranks[0].rss_mib[:3] == (100.0, None, 101.0)
    assert (series.ranks[1].rss_mib, series.ranks[0].device_mib) == ((), ())
    assert [node.cpu_percent[58] for node in series.nodes] == [25.0]
    assert len(series.times_s) == len(series.nodes[0].memory_used_mib) == 61


def test_a_thousand_ranks_stay_small(tmp_path: Path) -> None:
    steps = [Step(step=(10 + i % 7) * MS + 12_345 * i) for i in range(1000)]
    samples = [Sample(kind=columns.PROCESS_SAMPLE, values=(0, i * MIB), at_ns=START_NS + i * S) for i in range(30)]
    ranks = [Rank(rank=rank) for rank in range(1024)]
    contents = {rank.incarnation: Content(rank=rank.rank, steps=steps, samples=samples) for rank in ranks[:1]}
    facts = run_facts(ranks, status="completed", exit_code=0)
    series = build_summary(write_database(tmp_path / "x.sqlite", contents), facts, None).series
    full = msgspec.structs.replace(series, ranks=(series.ranks[0],) * 1024)

    assert len(series.first_steps) == 32
    assert len(msgspec.json.encode(full)) < 1_000_000
