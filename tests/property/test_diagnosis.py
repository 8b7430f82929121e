"""Whatever ranks recorded, there is a report with a verdict: ragged, empty, skipped, unmeasured, absurd."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.database import Content, Sample, Step, write_database
from tests.harness.facts import Rank, run_facts
from traceml_client.protocol import columns
from traceml_daemon.report.form import FinalSummary
from traceml_daemon.report.summary import build_summary

NS = st.sampled_from([columns.NOT_MEASURED, 0, 1, 1_000, 1_000_000, 20_000_000, 5_000_000_000])
STEP = st.builds(
    Step,
    input_wait=NS,
    h2d=NS,
    forward=NS,
    backward=NS,
    optimizer=NS,
    step=st.sampled_from([0, 1, 1_000_000, 30_000_000, 6_000_000_000]),
    tag=st.sampled_from([0, 0, 0, 1, 2, 4, 6, 8, 128, 248, 255]),
)
SAMPLE = st.builds(
    Sample,
    kind=st.integers(0, 9),
    values=st.lists(st.sampled_from([-1, 0, 1, 1_000, 1 << 40]), min_size=6, max_size=6).map(tuple),
    at_ns=st.integers(0, 1 << 36),
)
REPEATED = st.tuples(st.lists(STEP, max_size=6), st.integers(1, 40)).map(lambda pair: pair[0] * pair[1])
RANKS = st.lists(st.tuples(REPEATED, st.lists(SAMPLE, max_size=12)), max_size=5)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(RANKS)
def test_there_is_always_a_verdict_and_it_can_be_written(recorded: list[tuple[list[Step], list[Sample]]]) -> None:
    ranks = [Rank(rank=rank) for rank in range(len(recorded))]
    contents = {
        rank.incarnation: Content(rank=rank.rank, steps=steps, samples=sorted(samples, key=lambda s: s.at_ns))
        for rank, (steps, samples) in zip(ranks, recorded, strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        database = write_database(Path(folder) / "x.sqlite", contents)
        summary = build_summary(database, run_facts(ranks, status="completed", exit_code=0), None)
    written = msgspec.json.encode(summary)
    assert msgspec.json.decode(written, type=FinalSummary).primary_diagnosis == summary.findings[0]
    assert all(0 <= (finding.lost_share or 0) <= 1 for finding in summary.findings)
