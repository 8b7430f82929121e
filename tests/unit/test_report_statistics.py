"""Percentiles, means and shares against numpy's and against arithmetic that a person can follow."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.database import MS, Content, Sample, Step, write_database
from traceml_client.protocol import columns
from traceml_client.protocol.errors import StoreError
from traceml_daemon.core.events import Incarnation
from traceml_daemon.report.distribution import MAX_EXACT, Distribution
from traceml_daemon.report.form import StepTimeSection
from traceml_daemon.report.measurements import PIECE_RECORDS, Measurements
from traceml_daemon.report.samples import RankSamples, memory_section, process_section, system_section
from traceml_daemon.report.statistics import AttemptSteps, PhaseStatistics, step_time_section

A, B = Incarnation(0, 0, 0), Incarnation(0, 1, 0)
QUANTILES = (50, 95, 99)


def section_of(path: Path, *ranks: Incarnation, notes: tuple[str, ...] = ()) -> StepTimeSection:
    overall = PhaseStatistics()
    with Measurements(path) as measurements:
        by_rank = {rank: AttemptSteps(measurements.steps(place), overall) for rank, place in enumerate(ranks)}
    return step_time_section(overall, by_rank, notes)


@settings(deadline=None)
@given(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=300), st.integers(1, 300))
def test_percentiles_of_few_values_are_exact(values: list[int], cut: int) -> None:
    distribution = Distribution()
    for piece in (values[:cut], values[cut:]):
        distribution.add(np.array(piece, dtype=np.int64))

    assert distribution.percentiles() == pytest.approx(np.percentile(values, QUANTILES), rel=1e-12)
    assert (distribution.count, distribution.total) == (len(values), sum(values))


@pytest.mark.parametrize("seed", range(3))
def test_percentiles_of_many_values_are_right_to_a_thousandth(seed: int) -> None:
    """Lognormal steps in growing pieces with zeros among them: the bins have to grow on both sides."""
    generator = np.random.default_rng(seed)
    pieces = [generator.lognormal(10 + 2 * scale, 1.0, MAX_EXACT // 2).astype(np.int64) for scale in (2, 3, 1, 4, 0)]
    distribution = Distribution()
    for piece in (*pieces, np.zeros(1000, np.int64)):
        distribution.add(piece)

    everything = np.concatenate([*pieces, np.zeros(1000)])
    assert distribution.percentiles() == pytest.approx(np.percentile(everything, QUANTILES), rel=1e-3)
    assert distribution.total == int(everything.sum())


def test_the_same_figures_for_any_size_of_row(tmp_path: Path) -> None:
    steps = [Step(step=(10 + i % 7) * MS, forward=(2 + i % 3) * MS) for i in range(250)]
    sections = [
        section_of(
            write_database(tmp_path / f"{size}.sqlite", {A: Content(rank=0, steps=steps)}, chunk_records=size), A
        )
        for size in (1, 100, 1000)
    ]

    assert sections[0] == sections[1] == sections[2]
    assert sections[0].window.steps == 250


def test_a_run_longer_than_one_piece(tmp_path: Path) -> None:
    steps = [Step(step=10 * MS + i) for i in range(PIECE_RECORDS + 10)]
    path = write_database(tmp_path / "t.sqlite", {A: Content(rank=0, steps=steps)}, chunk_records=1000)
    section = section_of(path, A)

    assert (section.window.first_step, section.window.last_step) == (1, PIECE_RECORDS + 10)
    assert section.phases["step"] is not None
    assert section.phases["step"].p50_ms == pytest.approx(10 + PIECE_RECORDS / 2 / MS, abs=1e-4)


def test_the_phases_add_up_to_the_step(tmp_path: Path) -> None:
    """Also where a phase was measured on some steps only: the rest of those is residual."""
    steps = [Step(h2d=MS // 2 if i % 3 == 0 else columns.NOT_MEASURED, step=(10 + i % 5) * MS) for i in range(300)]
    section = section_of(write_database(tmp_path / "t.sqlite", {A: Content(rank=0, steps=steps)}), A)
    means = {name: times.mean_ms for name, times in section.phases.items() if times is not None}
    shares = [times.share for name, times in section.phases.items() if times is not None and name != "step"]

    assert sum(mean for name, mean in means.items() if name != "step") == pytest.approx(means["step"], rel=1e-6)
    assert sum(shares) == pytest.approx(1.0, abs=1e-4)
    assert section.throughput_steps_per_s == pytest.approx(1000 / means["step"])
    assert means["h2d"] == pytest.approx(0.5 / 3, abs=1e-6)


def test_the_warm_up_is_left_out_where_there_are_others(tmp_path: Path) -> None:
    warmup = Step(tag=columns.IS_WARMUP, step=9000 * MS)
    long, short = [warmup, *[Step()] * 49], [warmup]
    path = write_database(tmp_path / "t.sqlite", {A: Content(rank=0, steps=long), B: Content(rank=1, steps=short)})
    section, alone = section_of(path, A), section_of(path, B)

    assert (section.window.first_step, section.window.steps, section.window.warmup) == (2, 49, 1)
    assert section.phases["step"] is not None
    assert section.phases["step"].p99_ms == 10.0
    assert (alone.window.first_step, alone.window.steps, alone.window.warmup) == (1, 1, 0)


def test_skipped_steps_are_counted_apart(tmp_path: Path) -> None:
    steps = [Step(), Step(tag=columns.IS_SKIPPED, step=900 * MS), Step(tag=columns.IS_UNUSUAL)]
    path = write_database(tmp_path / "t.sqlite", {A: Content(rank=0, steps=steps)})
    with Measurements(path) as measurements:
        attempt = AttemptSteps(measurements.steps(A))

    assert (attempt.num_completed, attempt.num_skipped, attempt.last_step, attempt.num_unusual) == (2, 1, 3, 1)
    assert attempt.phases["step"] is not None
    assert attempt.phases["step"].p99_ms == 10.0


def test_what_was_not_measured_is_null_with_the_reason(tmp_path: Path) -> None:
    nothing = columns.NOT_MEASURED
    path = write_database(tmp_path / "t.sqlite", {A: Content(rank=0, steps=[Step(forward=nothing)] * 3)})
    section = section_of(path, A, notes=("forward: the model is called inside a compiled function only",))

    assert section.phases["h2d"] is None
    assert section.phases["forward"] is None
    assert section.reasons == {
        "h2d": "not measured on any step of any rank",
        "forward": "forward: the model is called inside a compiled function only",
    }
    assert section.phases["residual"] is not None
    assert section.phases["residual"].mean_ms == 4.0


def test_no_steps_at_all(tmp_path: Path) -> None:
    section = section_of(write_database(tmp_path / "t.sqlite", {A: Content(rank=0)}), A)

    assert set(section.phases.values()) == {None}
    assert section.window.steps == 0
    assert section.throughput_steps_per_s is None
    assert section.reasons["step"] == "no completed step was recorded"


def test_wide_records_are_read_like_narrow_ones(tmp_path: Path) -> None:
    """A step longer than 4.29 s makes its whole row wide."""
    steps = [*[Step()] * 99, Step(step=100_000 * MS), *[Step()] * 100]
    section = section_of(write_database(tmp_path / "t.sqlite", {A: Content(rank=0, steps=steps)}), A)

    assert section.phases["step"] is not None
    assert section.phases["step"].mean_ms == pytest.approx((199 * 10 + 100_000) / 200)
    assert section.phases["h2d"] is None


def test_rows_that_overlap_count_once(tmp_path: Path) -> None:
    """Two finalizations of one run, both with the recorder's content: sequences decide, not rows."""
    path = write_database(tmp_path / "t.sqlite", {A: Content(rank=0, steps=[Step()] * 150)})
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO chunk SELECT NULL, 1, stream, first_seq, count, fmt, columns, 1 FROM chunk")
    connection.close()

    assert section_of(path, A).window.steps == 150


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "no such table"), (b"not a database at all" * 100, "not a database")]
)
def test_a_file_that_is_no_database_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "telemetry.sqlite"
    path.write_bytes(content)

    with pytest.raises(StoreError, match=f"telemetry.sqlite: .*{words}"), Measurements(path):
        pass


def test_a_missing_database_is_named_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.sqlite"

    with pytest.raises(StoreError, match=r"telemetry\.sqlite"), Measurements(path):
        pass
    assert not path.exists()


def process(at_s: float, cpu_s: float, rss: int, peak: int) -> Sample:
    values = (int(cpu_s * 1e9), rss, 4, 20, peak)
    return Sample(kind=columns.PROCESS_SAMPLE, at_ns=int(at_s * 1e9), values=values)


SAMPLES = [
    process(0.0, 1.0, 100, 100),
    Sample(kind=columns.NODE_SAMPLE, values=(250, 4, 16, 0, 8)),
    Sample(kind=columns.DEVICE_MEMORY_SAMPLE, values=(0, 10, 20, 15, 25, 80)),
    process(2.0, 4.0, 300, 400),
    Sample(kind=columns.NODE_SAMPLE, values=(750, 8, 16, columns.NOT_MEASURED, columns.NOT_MEASURED)),
    Sample(kind=columns.DEVICE_MEMORY_SAMPLE, values=(0, 30, 40, 35, 45, 80)),
]


def test_samples_become_memory_process_and_system(tmp_path: Path) -> None:
    path = write_database(tmp_path / "t.sqlite", {A: Content(rank=0, samples=SAMPLES)})
    with Measurements(path) as measurements:
        samples = RankSamples(measurements.samples(A))
    memory, cpu, system = samples.memory(0), samples.process(0), samples.system(0)

    assert memory.rss_bytes is not None
    assert (memory.rss_bytes.mean, memory.rss_bytes.max, memory.rss_bytes.last) == (200.0, 300.0, 300.0)
    assert memory.peak_rss_bytes == 400
    (device,) = memory.devices
    assert (device.peak_allocated_bytes, device.peak_reserved_bytes, device.total_bytes) == (35, 45, 80)
    assert (cpu.cpu_percent, cpu.max_threads, cpu.max_open_files) == (150.0, 4, 20)
    assert system is not None
    assert system.cpu_percent is not None
    assert (system.cpu_percent.mean, system.cpu_percent.max) == (50.0, 75.0)
    assert (system.memory_total_bytes, system.shm_total_bytes) == (16, 8)
    assert system_section((system,)).overall.max_memory_used_share == 0.5
    assert memory_section((memory,)).overall.peak_allocated_rank == 0


def test_sections_without_samples_say_so(tmp_path: Path) -> None:
    path = write_database(tmp_path / "t.sqlite", {A: Content(rank=0)})
    with Measurements(path) as measurements:
        samples = RankSamples(measurements.samples(A))
    memory = memory_section((samples.memory(0),))

    assert samples.system(0) is None
    assert set(memory.reasons) == {"rss", "devices"}
    assert memory.overall.peak_rss_bytes is None
    assert process_section((samples.process(0),)).reasons != {}
    assert system_section(()).reasons != {}
