"""Why real runs were slow, from unmodified scripts: rank, phase, and figures that agree with the script's own clock."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.harness.torchrun import RunFolder, start_run

PACED = Path(__file__).parent / "scripts" / "paced.py"

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(120)]


def summary_of(tmp_path: Path, *options: str) -> dict[str, Any]:
    with start_run(["--nproc-per-node=2", PACED, *options], cwd=tmp_path) as run:
        done = run.finish()
    assert done.exit_code == 0, done.stderr.decode()
    summary: dict[str, Any] = RunFolder(tmp_path / "logs" / "run").summary()
    is_worth_a_look = summary["primary_diagnosis"]["severity"] != "info"
    assert (f"[TraceML] Diagnosis: {summary['primary_diagnosis']['kind']}" in done.stderr.decode()) == is_worth_a_look
    return summary


def test_a_rank_with_a_slow_backward_is_told_from_the_one_that_waits(tmp_path: Path) -> None:
    options = ["--rank", "1", "--backward-ms", "60", "--steps", "40", "--laps", str(tmp_path / "laps.json")]
    summary = summary_of(tmp_path, *options)

    first = summary["primary_diagnosis"]
    assert (first["kind"], first["ranks"], first["phase"]) == ("COMPUTE_STRAGGLER", [1], "backward")
    assert first["severity"] == "critical"
    assert [f for f in summary["findings"][1:] if f["severity"] != "info"] == []
    _check_sums(summary)
    _check_clock(summary, json.loads((tmp_path / "laps.json").read_text()))
    text = (tmp_path / "logs/run/final_summary.txt").read_text()
    assert text.index("COMPUTE_STRAGGLER") < text.index("p50 ms")


def test_loading_that_limits_all_ranks(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, "--input-ms", "60", "--workers", "1", "--steps", "40")

    first = summary["primary_diagnosis"]
    assert (first["kind"], first["ranks"], first["phase"]) == ("INPUT_BOUND", [0, 1], "input_wait")
    assert not [f for f in summary["findings"] if f["severity"] == "critical" and f["kind"] != "INPUT_BOUND"]
    _check_sums(summary)


def _check_sums(summary: dict[str, Any]) -> None:
    """The phases' means add up to the step's, overall and for every rank."""
    section = summary["step_time"]
    for phases in (section["phases"], *(rank["phases"] for rank in section["by_rank"])):
        whole = phases["step"]["mean_ms"]
        parts = sum(times["mean_ms"] for name, times in phases.items() if times is not None and name != "step")
        assert parts == pytest.approx(whole, rel=0.01)


def _check_clock(summary: dict[str, Any], laps: list[int]) -> None:
    """The median step of rank 0, against its script's own clock."""
    (rank,) = (rank for rank in summary["step_time"]["by_rank"] if rank["rank"] == 0)
    by_script = [later - earlier for earlier, later in itertools.pairwise(laps)][-rank["steps"] :]
    difference_ms = rank["phases"]["step"]["p50_ms"] - statistics.median(by_script) / 1e6
    assert abs(difference_ms) <= 0.02 * statistics.median(by_script) / 1e6 + 0.02
