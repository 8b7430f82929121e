"""How the command ends: its exit code, its status, its last lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from traceml_launch.outcome import (
    FinalLine,
    TelemetryEnd,
    TrainingEnd,
    exit_code_of,
    final_lines,
    render,
    training_status_of,
)

ENDS = [
    (TrainingEnd(exit_code=0), 0, "completed", "Training completed (exit code 0)."),
    (TrainingEnd(exit_code=1), 1, "failed", "Training failed: torchrun exited with code 1."),
    (TrainingEnd(exit_code=2), 2, "failed", "Training failed: torchrun exited with code 2."),
    (TrainingEnd(exit_code=None, signal="SIGKILL"), 137, "failed",
     "Training failed: torchrun was ended by SIGKILL (exit code 137)."),
    (TrainingEnd(exit_code=None, signal="SIGTERM"), 143, "failed",
     "Training failed: torchrun was ended by SIGTERM (exit code 143)."),
    (TrainingEnd(exit_code=1, interrupted_by="SIGHUP"), 129, "interrupted",
     "Training was interrupted by SIGHUP (exit code 129)."),
    (TrainingEnd(exit_code=1, interrupted_by="SIGINT"), 130, "interrupted",
     "Training was interrupted by SIGINT (exit code 130)."),
    (TrainingEnd(exit_code=0, interrupted_by="SIGQUIT"), 131, "interrupted",
     "Training was interrupted by SIGQUIT (exit code 131)."),
    (TrainingEnd(exit_code=None, signal="SIGKILL", interrupted_by="SIGTERM"), 143, "interrupted",
     "Training was interrupted by SIGTERM (exit code 143)."),
    (TrainingEnd(exit_code=None), 1, "failed", "Training failed: torchrun could not be started (exit code 1)."),
]  # fmt: skip


@pytest.mark.parametrize(("training", "code", "status", "sentence"), ENDS)
def test_code_status_and_sentence_of_every_end(training: TrainingEnd, code: int, status: str, sentence: str) -> None:
    assert exit_code_of(training) == code
    assert training_status_of(training) == status
    assert final_lines(training)[-1].text == f"[TraceML] {sentence}"


def texts(lines: list[FinalLine]) -> list[str]:
    return [line.text.removeprefix("[TraceML] ") for line in lines]


EVERYTHING: dict[str, Any] = {
    "verdict_lines": ["Rank 1 raised ValueError.", "Rank 0 is collateral."],
    "stderr_path": Path("/l/r/err.log"),
    "stdout_path": Path("/l/r/out.log"),
    "telemetry": TelemetryEnd(status="degraded", reason="finalization_warning", report=Path("/l/r/s.txt")),
}


def test_the_last_lines_come_in_the_contracts_order() -> None:
    assert texts(final_lines(TrainingEnd(exit_code=1), **EVERYTHING)) == [
        "Rank 1 raised ValueError.",
        "Rank 0 is collateral.",
        "Stderr: /l/r/err.log",
        "Stdout: /l/r/out.log",
        "Telemetry: degraded (finalization_warning); report: /l/r/s.txt",
        "Training failed: torchrun exited with code 1.",
    ]


def test_a_node_that_does_not_own_the_run_says_nothing_of_telemetry() -> None:
    assert texts(final_lines(TrainingEnd(exit_code=0), stderr_path=Path("/e"), stdout_path=Path("/o"))) == [
        "Stderr: /e",
        "Stdout: /o",
        "Training completed (exit code 0).",
    ]


def test_a_failure_has_at_most_six_lines() -> None:
    lines = texts(final_lines(TrainingEnd(exit_code=1), verdict_lines=[str(number) for number in range(9)]))
    assert lines[:-1] == ["0", "1", "2", "3", "4", "5"]


def test_what_is_worth_a_look_in_a_completed_run_comes_first_and_not_as_a_failure() -> None:
    lines = final_lines(TrainingEnd(exit_code=0), **{**EVERYTHING, "verdict_lines": ["Diagnosis: INPUT_BOUND"]})
    assert lines[0] == FinalLine("[TraceML] Diagnosis: INPUT_BOUND", "plain")
    quiet = final_lines(TrainingEnd(exit_code=0), verdict_lines=["Diagnosis: INPUT_BOUND"], is_quiet=True)
    assert quiet == []


def test_quiet_says_only_what_went_wrong() -> None:
    healthy = {**EVERYTHING, "verdict_lines": []}
    assert final_lines(TrainingEnd(exit_code=0), **healthy, is_quiet=True) == []
    failed = texts(final_lines(TrainingEnd(exit_code=1), **EVERYTHING, is_quiet=True))
    assert failed[0] == "Rank 1 raised ValueError."
    assert failed[-1] == "Training failed: torchrun exited with code 1."
    no_report = {**healthy, "telemetry": TelemetryEnd(status="failed", reason="aggregator_died")}
    assert texts(final_lines(TrainingEnd(exit_code=0), **no_report, is_quiet=True)) == [
        "Telemetry: failed (aggregator_died)"
    ]


def test_color_marks_the_outcome_and_only_where_it_is_wanted() -> None:
    line = final_lines(TrainingEnd(exit_code=0))[-1]
    assert render(line, has_color=False) == line.text
    assert render(line, has_color=True) == f"\x1b[32m{line.text}\x1b[0m"
    assert render(FinalLine("x"), has_color=True) == "x"
