"""Reads a report back that was written before. For a comparison other versions will do: only what it needs is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from traceml_client.protocol.artifacts import FAILURE_FILE, SUMMARY_FILE
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.launch import NODE_FILE
from traceml_client.protocol.manifest import TelemetryFacts, Topology, read_document
from traceml_client.protocol.node import NodeReport
from traceml_daemon.report.form import (
    FailureReport,
    FinalSummary,
    Finding,
    RankSection,
    StepTimeSection,
    TrainingSection,
)

_T = TypeVar("_T")
_WHY_MISSING: Final = {
    SUMMARY_FILE: "; `traceml view {}` makes it, unless the run was made with --no-history",
    FAILURE_FILE: ": this run has no diagnosis that could be verified",
}


class SavedRun(msgspec.Struct, frozen=True):
    """The parts of `final_summary.json` that a comparison needs."""

    run_name: str
    run_id: str
    topology: Topology
    training: TrainingSection
    telemetry: TelemetryFacts
    ranks: tuple[RankSection, ...]
    step_time: StepTimeSection
    primary_diagnosis: Finding
    findings: tuple[Finding, ...]
    failure: FailureReport | None
    failure_history: tuple[FailureReport, ...]
    provisional: bool = False


def read_run(run_dir: Path) -> SavedRun:
    """Raises StoreError with one line that names the file if it is missing, damaged or of another form."""
    return read_saved(run_dir / SUMMARY_FILE, SavedRun)


def read_summary(run_dir: Path) -> FinalSummary:
    """All of it, written by this version. Raises as `read_run`."""
    return read_saved(run_dir / SUMMARY_FILE, FinalSummary)


def read_failure(run_dir: Path) -> FailureReport:
    """Raises as `read_run`."""
    return read_saved(run_dir / FAILURE_FILE, FailureReport)


def read_node_reports(run_dir: Path) -> Iterator[NodeReport]:
    """What launchers left in the run's folder, by node; one that cannot be read is as good as none."""
    for path in sorted(run_dir.glob(f"nodes/node_*/{NODE_FILE}")):
        with contextlib.suppress(StoreError):
            yield read_saved(path, NodeReport)


def read_saved(path: Path, kind: type[_T]) -> _T:
    """Raises as `read_run`."""
    try:
        return msgspec.json.decode(read_document(path), type=kind)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing{_WHY_MISSING.get(path.name, '').format(path.parent)}") from None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged or of another version: {error}") from None
