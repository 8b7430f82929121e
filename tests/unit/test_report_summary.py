"""The reports as files: their form, their schemas, their text, and what stands in it first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.harness.database import MS, Content, Sample, Step, write_database
from tests.harness.facts import START_NS, Rank, error, node_report, run_facts
from traceml_client.protocol import columns
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_client.protocol.manifest import (
    Lifecycle,
    Manifest,
    MissingRank,
    NodeOutcome,
    RecordCounts,
    TrainingOutcome,
    encode_json,
    rfc3339,
)
from traceml_daemon.diagnosis.finding import Finding, Severity
from traceml_daemon.errors import ReportError
from traceml_daemon.report import json_schema
from traceml_daemon.report.facts import RunFacts
from traceml_daemon.report.text import finding_lines
from traceml_daemon.report.write import write_reports

HEALTHY = [Rank(rank=rank, records=RecordCounts(received=60, stored=60)) for rank in range(2)]
PEER = "Connection closed by peer [127.0.0.1]:40512"
FAILED = [
    Rank(rank=0, error=error("RuntimeError", PEER, at_ms=1300.0), exit_code=1, died_ms=1400.0),
    Rank(rank=1, error=error("ValueError", "label 1000 out of range", at_ms=1000.0), exit_code=1, died_ms=1900.0),
    Rank(rank=2, signal="SIGTERM", exit_code=None, died_ms=2000.0, state="lost"),
]
MISSING = MissingRank(rank=2, last_step=20, last_seen_at=rfc3339(START_NS), why="killed by SIGTERM")
CONTRACT = {
    "run_name",
    "run_id",
    "generated_at",
    "training",
    "telemetry",
    "ranks",
    "step_time",
    "memory",
    "process",
    "system",
    "primary_diagnosis",
    "findings",
    "failure",
    "failure_history",
    "schema_version",
}


def fill(run_dir: Path, facts: RunFacts, num_steps: int = 60) -> None:
    steps = [Step(tag=columns.IS_WARMUP), *[Step()] * (num_steps - 1)]
    contents = {a.incarnation: Content(rank=a.place.rank, steps=steps) for a in facts.attempts}
    write_database(run_dir / DATABASE_FILE, contents)


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def validate(name: str, document: object) -> None:
    jsonschema.validate(document, load(json_schema.path_of(name)), jsonschema.Draft202012Validator)


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    facts = run_facts(FAILED, missing=(MISSING,), warnings=("node 1's launcher was lost",))
    fill(tmp_path, facts, num_steps=21)
    write_reports(tmp_path, facts, True)
    return tmp_path


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    facts = run_facts(HEALTHY, status="completed", exit_code=0)
    fill(tmp_path, facts)
    assert write_reports(tmp_path, facts, True).verdict_lines == ()
    return tmp_path


def test_the_summary_has_the_contracts_fields(healthy: Path) -> None:
    summary = load(healthy / "final_summary.json")

    assert set(summary) >= CONTRACT
    assert summary["training"]["status"] == "completed"
    assert summary["training"]["nodes"] == [{"node_rank": 0, "exit_code": 0, "signal": None, "why": None}]
    assert summary["telemetry"]["ranks_finished"] == [0, 1]
    first = summary["ranks"][0]["attempts"][0]
    assert (first["steps"], first["last_step"], first["records"]["stored"]) == (60, 60, 60)
    assert summary["step_time"]["window"]["steps"] == 59
    assert set(summary["step_time"]["phases"]) == {*columns.PHASES, "residual", "step"}
    assert (summary["primary_diagnosis"]["kind"], summary["primary_diagnosis"]["severity"]) == ("COMPUTE_BOUND", "info")
    assert summary["findings"] == [summary["primary_diagnosis"]]
    assert (summary["failure"], summary["failure_history"]) == (None, [])
    assert not (healthy / "failure_report.json").exists()


def test_written_reports_are_valid(failed: Path) -> None:
    validate("final_summary", load(failed / "final_summary.json"))
    validate("failure_report", load(failed / "failure_report.json"))


def test_manifest_and_node_report_are_valid() -> None:
    facts = run_facts(HEALTHY)
    manifest = Manifest(
        schema_version=1,
        run_name="demo",
        run_id="demo-1",
        created_at=rfc3339(START_NS),
        updated_at=rfc3339(START_NS),
        status="running",
        lifecycle=Lifecycle(started_at=rfc3339(START_NS)),
        training=TrainingOutcome(),
        topology=facts.topology,
        telemetry_status="pending",
        telemetry_reason=None,
        telemetry=facts.telemetry,
    )
    validate("manifest", json.loads(encode_json(manifest)))
    validate("node", json.loads(encode_json(node_report(FAILED))))


def test_a_document_without_a_field_is_refused(healthy: Path) -> None:
    summary = load(healthy / "final_summary.json")
    del summary["telemetry"]["ranks_missing"]

    with pytest.raises(jsonschema.ValidationError, match="ranks_missing"):
        validate("final_summary", summary)


@pytest.mark.parametrize("name", json_schema.TYPES)
def test_the_shipped_schema_is_that_of_the_type(name: str) -> None:
    """Otherwise: python -m traceml_daemon.report.json_schema."""
    assert json_schema.path_of(name).read_bytes() == encode_json(json_schema.document(name))


def test_a_failed_runs_text_begins_with_the_failure(failed: Path) -> None:
    text = (failed / "final_summary.txt").read_text()
    lines = text.splitlines()

    assert lines[0] == "TRAINING FAILED with exit code 1"
    assert "Rank 1 (node 0) raised ValueError: label 1000 out of range, in step 21 (forward)" in lines[:6]
    assert text.index("Rank 1 (node 0) raised") < text.index("Ranks: 3 expected") < text.index("p50 ms")
    assert "rank 2 missing: killed by SIGTERM (last step 20" in text
    assert "no verdict on performance" in text
    assert "node 1's launcher was lost" in text
    assert len(lines) <= 45


def test_a_healthy_runs_text_is_one_screen(healthy: Path) -> None:
    lines = (healthy / "final_summary.txt").read_text().splitlines()

    assert lines[0] == "TRAINING COMPLETED with exit code 0"
    assert any(line.split()[:2] == ["forward", "3.000"] for line in lines)
    assert any(line.strip().startswith("throughput: 100 steps/s") for line in lines)
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 120


def test_a_thousand_missing_ranks_still_fit_a_screen(tmp_path: Path) -> None:
    missing = tuple(MissingRank(rank=rank, last_step=0, last_seen_at=None, why="never started") for rank in range(1024))
    facts = run_facts([Rank(rank=1024)], missing=missing)
    fill(tmp_path, facts)
    write_reports(tmp_path, facts, True)

    text = (tmp_path / "final_summary.txt").read_text()
    assert "and ranks 8-1023" in text
    assert len(text.splitlines()) <= 45


def test_the_diagnosis_of_a_failed_run_says_first_that_it_failed(failed: Path) -> None:
    diagnosis = load(failed / "final_summary.json")["primary_diagnosis"]

    assert diagnosis["summary"].startswith("The run failed: rank 1 (node 0) raised ValueError")


def test_an_error_of_the_diagnosis_costs_the_verdict_and_not_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_profile: object) -> None:
        raise IndexError("out of bounds")

    monkeypatch.setattr("traceml_daemon.report.summary.diagnose", fail)
    facts = run_facts(HEALTHY, status="completed", exit_code=0)
    fill(tmp_path, facts)
    write_reports(tmp_path, facts, True)
    summary = load(tmp_path / "final_summary.json")
    assert "IndexError: out of bounds" in summary["primary_diagnosis"]["summary"]
    assert summary["step_time"]["window"]["steps"] == 59


def test_of_a_failed_run_only_memory_is_named_beside_the_failure(tmp_path: Path) -> None:
    """A straggler as clear as can be, and memory that ran full: the first would read like a verdict on performance."""
    facts = run_facts(FAILED)
    contents = {}
    for attempt in facts.attempts:
        is_slow = attempt.place.rank == 1
        steps = [Step(forward=(300 if is_slow else 3) * MS, step=310 * MS)] * 60
        samples = [
            Sample(kind=columns.PROCESS_SAMPLE, values=(i, (300 + 40 * i) << 20), at_ns=i * 300 * MS) for i in range(60)
        ]
        contents[attempt.incarnation] = Content(rank=attempt.place.rank, steps=steps, samples=samples)
    write_database(tmp_path / DATABASE_FILE, contents)
    write_reports(tmp_path, facts, True)

    summary = load(tmp_path / "final_summary.json")
    assert summary["primary_diagnosis"]["kind"] == "INSUFFICIENT_DATA"
    assert [finding["kind"] for finding in summary["findings"]] == ["MEMORY_CREEP"]
    text = (tmp_path / "final_summary.txt").read_text()
    assert "STRAGGLER" not in text
    assert text.index("raised ValueError") < text.index("Seen before the end")


def test_without_history_the_failure_is_reported_all_the_same(tmp_path: Path) -> None:
    reported = write_reports(tmp_path, run_facts(FAILED), False)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["failure_report.json", "failure_report.txt"]
    assert reported.failure_sentence is not None
    assert reported.verdict_lines[0].startswith("Rank 1 (node 0) raised ValueError")


def test_a_provisional_summary_says_so_and_comes_alone(tmp_path: Path) -> None:
    facts = run_facts(HEALTHY, status="interrupted", exit_code=None, is_provisional=True)
    fill(tmp_path, facts)
    write_reports(tmp_path, facts, True)

    assert load(tmp_path / "final_summary.json")["provisional"] is True
    assert "TRAINING INTERRUPTED (provisional" in (tmp_path / "final_summary.txt").read_text()
    assert not (tmp_path / "failure_report.json").exists()


def test_a_report_that_is_no_longer_true_is_taken_away(failed: Path) -> None:
    write_reports(failed, run_facts(HEALTHY, status="completed", exit_code=0), False)

    assert not (failed / "failure_report.json").exists()
    assert not (failed / "failure_report.txt").exists()


def test_a_damaged_database_costs_the_summary_and_not_the_failure(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_bytes(b"garbage" * 1000)

    with pytest.raises(ReportError, match=r"telemetry\.sqlite") as raised:
        write_reports(tmp_path, run_facts(FAILED), True)
    assert raised.value.reported.verdict_lines[1].startswith("Cause: ")
    assert (tmp_path / "failure_report.json").exists()


def test_attempts_are_numbered_by_start_and_say_where_they_ran(tmp_path: Path) -> None:
    """After a membership restart rank 0 runs in another slot, whose own count begins at 0 again."""
    moved = [Rank(rank=0, local_rank=0, attempt=0), Rank(rank=0, node_index=1, local_rank=0, attempt=1)]
    facts = run_facts(moved, status="completed", exit_code=0)
    fill(tmp_path, facts)
    write_reports(tmp_path, facts, True)
    attempts = load(tmp_path / "final_summary.json")["ranks"][0]["attempts"]

    assert [(a["attempt"], a["node_rank"], a["slot_attempt"]) for a in attempts] == [(0, 0, 0), (1, 1, 1)]


def test_the_evidence_stands_on_the_line_that_is_named(tmp_path: Path) -> None:
    stream = tmp_path / "nodes/node_0/ranks/rank_1/attempt_0/stderr.log"
    stream.parent.mkdir(parents=True)
    stream.write_bytes(b"loading\rloading\nTraceback\n\x00\xff\n[rank1]: ValueError: label 1000 out of range\nbye\n")
    write_reports(tmp_path, run_facts(FAILED), False)
    (evidence,) = load(tmp_path / "failure_report.json")["evidence"]

    assert evidence["line"] == 4
    assert (tmp_path / evidence["file"]).read_bytes().split(b"\n")[3].decode() == evidence["text"]
    assert f"Evidence: {evidence['file']}:4" in (tmp_path / "failure_report.txt").read_text()


def test_the_evidence_of_a_signal_is_in_the_nodes_report(tmp_path: Path) -> None:
    ranks = [Rank(rank=0), Rank(rank=1, signal="SIGSEGV", exit_code=None, died_ms=5.0, state="lost")]
    report = tmp_path / "nodes/node_0/node.json"
    report.parent.mkdir(parents=True)
    report.write_bytes(encode_json(node_report(ranks)))
    write_reports(tmp_path, run_facts(ranks), False)
    (evidence,) = load(tmp_path / "failure_report.json")["evidence"]

    lines = report.read_text().splitlines()
    assert evidence["text"] == '"signal": "SIGSEGV",'
    assert evidence["text"] in lines[evidence["line"] - 1]
    assert '"rank": 1' in "".join(lines[evidence["line"] - 12 : evidence["line"]])


def test_a_lost_node_is_named_below_the_outcome(tmp_path: Path) -> None:
    lost = NodeOutcome(node_rank=1, exit_code=None, signal=None, why="node 1's launcher was lost")
    facts = run_facts(HEALTHY, nodes=(lost,))
    fill(tmp_path, facts)
    write_reports(tmp_path, facts, True)

    assert "Node 1: node 1's launcher was lost" in (tmp_path / "final_summary.txt").read_text()


@pytest.mark.parametrize(("severity", "num_lines"), [("info", 0), ("warning", 2), ("critical", 2)])
def test_only_what_is_worth_a_persons_time_is_said_at_the_end(severity: Severity, num_lines: int) -> None:
    finding = Finding(
        kind="INPUT_BOUND", severity=severity, confidence="high", summary="Input takes 92%.", action="More workers."
    )
    lines = finding_lines(finding)
    assert (
        lines
        == (
            f"Diagnosis: INPUT_BOUND ({severity}, confidence high): Input takes 92%.",
            "Try first: More workers.",
        )[:num_lines]
    )
