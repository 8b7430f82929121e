"""The HTML report without a browser: what stands in it, in which order, and what never does."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from tests.harness import reports
from tests.harness.facts import Rank, run_facts
from tests.harness.noisy_run import write_noisy_run
from traceml_daemon.report.form import FinalSummary, Window
from traceml_daemon.report.html import summary_html
from traceml_daemon.report.measured_form import Series
from traceml_daemon.report.write import write_reports

NOTHING = Series(
    steps_per_cell=1,
    first_steps=(),
    phase_ms={},
    unusual_steps=(),
    seconds_per_span=1.0,
    times_s=(),
    ranks=(),
    nodes=(),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def healthy(folder: Path) -> FinalSummary:
    return reports.healthy(folder)


@pytest.fixture(scope="module")
def failed(folder: Path) -> FinalSummary:
    return reports.failed(folder)


def chart_names(page: str) -> list[str]:
    return re.findall(r'<figure id="([\w-]+)">', page)


def test_the_page_needs_no_script_and_no_network(healthy: FinalSummary, failed: FinalSummary) -> None:
    for page in map(summary_html, (healthy, failed)):
        assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|\bon\w+=|https?:|src=", page, re.IGNORECASE)


def test_every_drawing_is_well_formed_and_nothing_is_not_a_number(healthy: FinalSummary, failed: FinalSummary) -> None:
    for page in map(summary_html, (healthy, failed)):
        drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
        assert len(drawings) == 6
        for drawing in drawings:
            ET.fromstring(drawing)
        assert not re.search(r"\b(?:nan|inf|None|Undefined)\b", page)


def test_a_healthy_run_shows_its_diagnosis_and_every_chart(healthy: FinalSummary) -> None:
    page = summary_html(healthy)
    assert chart_names(page) == ["timeline", "shares", "step-time", "heat-map", "phases", "rss"]
    assert page.index(healthy.primary_diagnosis.kind) < page.index('id="timeline"')
    assert "No verdict" not in page


def test_a_failed_run_leads_with_who_why_and_the_next_step(failed: FinalSummary) -> None:
    page = summary_html(failed)
    assert failed.failure is not None
    order = [
        "TRAINING FAILED",
        "Rank 1 (node 0) raised ValueError",
        "Next:",
        "no verdict on performance",
        "Phases of a",
    ]
    assert sorted(order, key=page.index) == order
    assert "INSUFFICIENT_DATA" not in page
    assert "recovered by a restart" in page
    assert "killed by SIGKILL" in page


def test_text_of_the_run_is_text(failed: FinalSummary) -> None:
    page = summary_html(failed)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_thousand_ranks_stay_small_and_the_slow_one_is_named(folder: Path) -> None:
    page = summary_html(reports.wide(folder))
    assert len(page.encode()) < 2_000_000
    assert "Highest: rank 700." in page
    assert "Each row is 8 ranks" in page
    assert page.count("<tr>") < 60


def test_a_run_without_measurements_is_a_page_too(healthy: FinalSummary) -> None:
    replace = msgspec.structs.replace
    empty = replace(
        healthy,
        ranks=(),
        series=NOTHING,
        step_time=replace(
            healthy.step_time,
            window=Window(first_step=None, last_step=None, steps=0, warmup=0, skipped=0, unusual=0),
            phases=dict.fromkeys(healthy.step_time.phases),
            by_rank=(),
            throughput_steps_per_s=None,
            reasons=dict.fromkeys(healthy.step_time.phases, "no completed step was recorded"),
        ),
    )
    page = summary_html(empty)
    assert chart_names(page) == []
    assert "Steps: none measured; no completed step was recorded" in page
    assert "None" not in page


def test_a_page_that_cannot_be_written_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = write_noisy_run(tmp_path / "run", 1, num_steps=40)
    facts = run_facts([Rank(rank=0), Rank(rank=1)], status="completed", exit_code=0)
    write_reports(run_dir, facts, True, has_html=True)
    assert (run_dir / "final_summary.html").read_text().startswith("<!doctype html>")
    for name in ("final_summary.html", "final_summary.json"):
        (run_dir / name).unlink()
    (run_dir / "final_summary.html").mkdir()
    (fault,) = write_reports(run_dir, facts, True, has_html=True).faults
    assert fault.startswith("final_summary.html could not be written: ")
    assert (run_dir / "final_summary.json").is_file()
    assert "final_summary.html could not be written" in caplog.text


def test_a_page_that_is_there_never_tells_of_an_earlier_end(tmp_path: Path) -> None:
    run_dir = write_noisy_run(tmp_path / "run", 1, num_steps=40)
    (run_dir / "final_summary.html").write_text("of an earlier finalization")
    write_reports(run_dir, run_facts([Rank(rank=0), Rank(rank=1)], exit_code=3), True)
    assert "TRAINING FAILED with exit code 3" in (run_dir / "final_summary.html").read_text()
