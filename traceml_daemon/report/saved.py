"""Reads a report back that was written before. For a comparison other versions will do: only what it needs is read."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import RecordCounts, Topology, TrainingStatus
from traceml_daemon.report.form import FinalSummary, Finding, Phases
from traceml_daemon.report.write import SUMMARY_FILE

_T = TypeVar("_T")


class SavedAttempt(msgspec.Struct, frozen=True):
    node_rank: int
    local_rank: int
    slot_attempt: int
    last_step: int


class SavedRank(msgspec.Struct, frozen=True):
    rank: int
    attempts: tuple[SavedAttempt, ...]


class SavedFailure(msgspec.Struct, frozen=True):
    category: str
    summary: str


class SavedTraining(msgspec.Struct, frozen=True):
    status: TrainingStatus


class SavedTelemetry(msgspec.Struct, frozen=True):
    records: RecordCounts


class SavedWindow(msgspec.Struct, frozen=True):
    steps: int


class SavedStepTime(msgspec.Struct, frozen=True):
    clock: str
    window: SavedWindow
    phases: Phases
    throughput_steps_per_s: float | None


class SavedRun(msgspec.Struct, frozen=True):
    """The fields of `final_summary.json` that other programs rely on, as far as a comparison needs them."""

    run_name: str
    run_id: str
    topology: Topology
    training: SavedTraining
    telemetry: SavedTelemetry
    ranks: tuple[SavedRank, ...]
    step_time: SavedStepTime
    primary_diagnosis: Finding
    findings: tuple[Finding, ...]
    failure: SavedFailure | None
    failure_history: tuple[SavedFailure, ...]
    provisional: bool = False


def read_run(run_dir: Path) -> SavedRun:
    """Raises StoreError with one line that names the file if it is missing, damaged or of another form."""
    return _read(run_dir, SavedRun)


def read_summary(run_dir: Path) -> FinalSummary:
    """All of it, written by this version. Raises as `read_run`."""
    return _read(run_dir, FinalSummary)


def _read(run_dir: Path, kind: type[_T]) -> _T:
    path = run_dir / SUMMARY_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise StoreError(
            f"{path} is missing; `traceml view {run_dir}` makes it, unless the run was made with --no-history"
        ) from None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is damaged or of another version: {error}") from None
