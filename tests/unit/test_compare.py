"""`compare`: noise is `same`, a tenth slower is `worse`, and what cannot be judged is not."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from tests.harness.facts import Rank, error, run_facts
from tests.harness.noisy_run import write_noisy_run
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_client.protocol.manifest import Manifest, write_manifest
from traceml_daemon.report import json_schema
from traceml_daemon.report.compare import compare
from traceml_daemon.report.compare_form import Comparison
from traceml_daemon.report.compare_text import comparison_text
from traceml_daemon.run.run_manifest import first_manifest
from traceml_launch import cli

NUM_PAIRS = 20
FAILED = run_facts(
    [Rank(rank=0, error=error("ValueError", "label 1000", at_ms=900.0), exit_code=1, died_ms=1000.0), Rank(rank=1)]
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a0`... and `b0`... are runs of one script, in `s0`... everything takes a tenth longer."""
    folder = tmp_path_factory.mktemp("runs")
    for place in range(NUM_PAIRS):
        write_noisy_run(folder / f"a{place}", 100 + place)
        write_noisy_run(folder / f"b{place}", 200 + place)
        write_noisy_run(folder / f"s{place}", 300 + place, all_slower=1.1)
    return folder


def stretches(share: float, factor: float) -> npt.NDArray[np.float64]:
    """A factor for each of 400 steps: slow for long stretches, which are this share of the run."""
    return np.where(np.arange(400) % 130 < 130 * share, factor, 1.0)


def verdicts(runs: Path, first: str, second: str, num_pairs: int = NUM_PAIRS) -> Counter[str]:
    return Counter(compare(runs / f"{first}{i}", runs / f"{second}{i}").verdict for i in range(num_pairs))


def test_runs_of_one_script_are_the_same(runs: Path) -> None:
    assert verdicts(runs, "a", "b")["same"] >= 0.95 * NUM_PAIRS


def test_a_tenth_slower_is_worse_and_a_tenth_faster_better(runs: Path) -> None:
    assert verdicts(runs, "a", "s")["worse"] >= 0.95 * NUM_PAIRS
    assert verdicts(runs, "s", "a", num_pairs=3) == {"better": 3}


def test_the_answer_is_the_same_every_time(runs: Path) -> None:
    assert compare(runs / "a0", runs / "s0") == compare(runs / "a0", runs / "s0")


def test_the_phase_that_became_slower_is_named(runs: Path, tmp_path: Path) -> None:
    comparison = compare(runs / "a0", write_noisy_run(tmp_path / "b", 1, slower={"forward": 1.6}))
    assert comparison.verdict == "worse"
    assert "most of it in forward" in comparison.why
    assert [phase.phase for phase in comparison.phases if phase.verdict == "worse"] == ["forward"]
    assert comparison.step_time.interval_pct is not None
    low, high = comparison.step_time.interval_pct
    assert low < 18 < high


def test_the_phase_is_named_by_the_figure_that_judged(tmp_path: Path) -> None:
    """One step of A that took ages makes A's mean the larger one, in whatever phase it was."""
    first = write_noisy_run(tmp_path / "a", 7, slower={"input_wait": np.where(np.arange(400) == 200, 1200.0, 1.0)})
    second = write_noisy_run(tmp_path / "b", 8, slower={"backward": 1.3})
    comparison = compare(first, second)
    assert comparison.verdict == "worse"
    assert comparison.step_time.mean is not None
    assert comparison.step_time.mean.change_pct < 0
    assert "most of it in backward, whose median changed by +1" in comparison.why


def test_where_others_used_the_machine_the_undisturbed_steps_decide(tmp_path: Path) -> None:
    """Of the steps of one run over half were slow. What they were slow in says that the script did not do it."""
    busy = write_noisy_run(tmp_path / "busy", 1, jitter=0.01, all_slower=stretches(0.6, 1.4))
    quiet = write_noisy_run(tmp_path / "quiet", 2, jitter=0.01)
    slower = write_noisy_run(tmp_path / "slower", 3, jitter=0.01, all_slower=1.1 * stretches(0.3, 1.3))
    comparisons = [compare(busy, quiet), compare(quiet, busy), compare(busy, slower)]
    assert [comparison.verdict for comparison in comparisons] == ["same", "same", "worse"]
    assert {comparison.step_time.judged_by for comparison in comparisons} == {"quiet"}
    assert "the fastest twentieth of the steps changed by" in comparisons[0].why


def test_slow_stretches_of_one_phase_are_the_scripts(tmp_path: Path) -> None:
    first = write_noisy_run(tmp_path / "a", 2, jitter=0.01)
    second = write_noisy_run(tmp_path / "b", 3, jitter=0.01, slower={"backward": stretches(0.7, 1.8)})
    comparison = compare(first, second)
    assert comparison.verdict == "worse"
    assert comparison.step_time.judged_by == "median"


def test_a_run_that_was_disturbed_throughout_cannot_be_compared(tmp_path: Path) -> None:
    quiet = write_noisy_run(tmp_path / "quiet", 2, jitter=0.01)
    uneven = np.random.default_rng(4).lognormal(0.3, 0.15, 400)
    busy = write_noisy_run(tmp_path / "busy", 1, jitter=0.01, all_slower=stretches(0.5, 1.3) * uneven)
    comparison = compare(quiet, busy)
    assert comparison.verdict == "inconclusive"
    assert "run B had slow stretches in all phases alike and hardly an undisturbed step" in comparison.why


def test_a_few_much_slower_steps_are_seen_beside_an_equal_median(runs: Path, tmp_path: Path) -> None:
    comparison = compare(runs / "a0", write_noisy_run(tmp_path / "b", 1, num_steps=800, stall_every=25))
    assert comparison.step_time.change_pct is not None
    assert abs(comparison.step_time.change_pct) < 5
    assert comparison.verdict == "worse"
    assert "slow steps have become more or fewer" in comparison.why


def test_where_steps_are_of_two_kinds_the_mean_decides(tmp_path: Path) -> None:
    first, second = (write_noisy_run(tmp_path / str(i), 43 + i, num_steps=3000, is_of_two_kinds=True) for i in range(2))
    slower = write_noisy_run(tmp_path / "slower", 45, num_steps=3000, is_of_two_kinds=True, all_slower=1.2)
    assert [compare(first, other).verdict for other in (second, slower)] == ["same", "worse"]
    assert "the median step is unsteady" in compare(first, slower).why


def test_more_noise_than_change_is_inconclusive(tmp_path: Path) -> None:
    noisy = [write_noisy_run(tmp_path / name, seed, num_steps=60, jitter=0.8) for name, seed in (("a", 1), ("b", 2))]
    comparison = compare(*noisy)
    assert comparison.verdict == "inconclusive"
    assert "noise" in comparison.why


def test_columns_stay_apart_however_much_changed(runs: Path, tmp_path: Path) -> None:
    far = write_noisy_run(tmp_path / "far", 1, all_slower=400)
    rows = comparison_text(compare(runs / "a0", far)).splitlines()
    row = next(row for row in rows if row.startswith("step "))
    assert re.search(r" x \d{3}  x \d{3} to x \d{3} ", row), row


def test_too_few_steps_are_inconclusive(runs: Path, tmp_path: Path) -> None:
    comparison = compare(runs / "a0", write_noisy_run(tmp_path / "b", 1, num_steps=20, all_slower=2))
    assert comparison.verdict == "inconclusive"
    assert "has 19 steps after warm-up" in comparison.why


def test_a_failed_run_gets_figures_a_warning_and_no_verdict(runs: Path, tmp_path: Path) -> None:
    failed = write_noisy_run(tmp_path / "b", 1, all_slower=2, facts=FAILED)
    comparison = compare(runs / "a0", failed)
    assert comparison.verdict == "inconclusive"
    assert "run B (demo) failed: rank 0" in comparison.why
    assert "B (demo) failed" in comparison.warnings
    assert comparison.step_time.change_pct == pytest.approx(100, abs=10)
    assert {phase.verdict for phase in (*comparison.phases, comparison.step_time)} == {"inconclusive"}


def test_without_single_steps_there_is_no_verdict(runs: Path, tmp_path: Path) -> None:
    bare = write_noisy_run(tmp_path / "b", 1, all_slower=2)
    (bare / DATABASE_FILE).unlink()
    comparison = compare(runs / "a0", bare)
    assert comparison.verdict == "inconclusive"
    assert DATABASE_FILE in comparison.why
    assert comparison.step_time.interval_pct is None


def test_the_report_of_another_version_is_compared_by_the_fields_that_stay(runs: Path, tmp_path: Path) -> None:
    other = write_noisy_run(tmp_path / "b", 200)
    path = other / "final_summary.json"
    document = json.loads(path.read_bytes())
    for section in ("series", "memory", "process", "system", "warnings"):
        del document[section]
    path.write_text(json.dumps({**document, "a_later_field": 1}))
    assert compare(runs / "a0", other).verdict == "same"


def test_other_numbers_of_ranks_are_compared_with_a_warning(runs: Path, tmp_path: Path) -> None:
    comparison = compare(runs / "a0", write_noisy_run(tmp_path / "b", 1, num_ranks=12, num_steps=100))
    assert any("A has 2 ranks and B 12" in warning for warning in comparison.warnings)
    assert comparison.step_time.interval_pct is not None


@pytest.mark.parametrize(
    ("second", "limit", "code"),
    [("s0", None, 0), ("s0", "8", 4), ("s0", "30", 0), ("b0", "5", 0), ("few", "5", 3), ("gone", "5", 2)],
)
def test_exit_codes(
    second: str, limit: str | None, code: int, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_noisy_run(tmp_path / "few", 1, num_steps=20)
    second = str(tmp_path / "few" / "final_summary.json") if second == "few" else str(runs / second)
    limits = [] if limit is None else ["--fail-on-regression", limit]
    monkeypatch.setattr("sys.argv", ["traceml", "compare", str(runs / "a0"), second, *limits])
    assert cli.main() == code


def test_json_follows_its_schema(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["traceml", "compare", "a0", "s0", "--logs-dir", str(runs), "--json"])
    assert cli.main() == 0
    document = json.loads(capsys.readouterr().out)
    schema = json.loads(json_schema.path_of("comparison").read_bytes())
    jsonschema.validate(document, schema, jsonschema.Draft202012Validator)
    wanted = {"schema_version", "verdict", "why", "step_time", "phases", "findings", "warnings"}
    assert wanted <= set(document)
    assert {"a_p50_ms", "b_p50_ms", "change_pct", "interval_pct"} <= set(document["step_time"])
    assert msgspec.convert(document, Comparison).verdict == "worse"


def test_damaged_reports_are_one_line_and_exit_2(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "final_summary.json").write_text('{"run_name": "x"')
    monkeypatch.setattr("sys.argv", ["traceml", "compare", str(runs / "a0"), str(tmp_path)])
    assert cli.main() == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "final_summary.json is damaged" in message


def test_a_folder_of_runs_is_a_table(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_noisy_run(tmp_path / "good", 1, num_steps=60)
    write_noisy_run(tmp_path / "bad", 2, num_steps=60, facts=FAILED)
    (tmp_path / "empty").mkdir()
    for name in ("good", "bad", "empty"):
        write_manifest(tmp_path / name, manifest)
    monkeypatch.setattr("sys.argv", ["traceml", "compare", str(tmp_path)])
    assert cli.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert any("completed" in line and "59" in line and "backward 50%" in line for line in lines[1:3])
    assert any("failed" in line and "python_exception" in line for line in lines[1:3])
    assert "empty/final_summary.json is missing" in lines[3]

    monkeypatch.setattr("sys.argv", ["traceml", "compare", str(tmp_path), "--json"])
    assert cli.main() == 0
    document = json.loads(capsys.readouterr().out)
    schema = json.loads(json_schema.path_of("run_table").read_bytes())
    jsonschema.validate(document, schema, jsonschema.Draft202012Validator)
    assert [len(document[name]) for name in ("runs", "warnings")] == [2, 1]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    from traceml_daemon.config import RunConfig

    return first_manifest(RunConfig(run_name="demo", run_id="demo-1", run_dir=tmp_path), is_authenticated=True)
