"""The daemon's two small files about a finalization: what to be warned of, and why there is no report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from traceml_client.protocol.launch import AGGREGATOR_DIR
from traceml_client.protocol.manifest import TelemetryFacts, rfc3339
from traceml_daemon.core import events as ev
from traceml_daemon.run.run_facts import RunKnowledge

SCHEMA_VERSION: Final = 1
WARNING_FILE: Final = f"{AGGREGATOR_DIR}/finalization_warning.json"
ERROR_FILE: Final = f"{AGGREGATOR_DIR}/finalization_error.json"


def forget_earlier(run_dir: Path) -> None:
    """What an earlier finalization of this run warned of need not be true any more. Blocks. Raises OSError."""
    for name in (WARNING_FILE, ERROR_FILE):
        (run_dir / name).unlink(missing_ok=True)


def has_warnings(warnings: tuple[str, ...], telemetry: TelemetryFacts) -> bool:
    """Whether a finalization warning is to be written."""
    return bool(warnings or telemetry.ranks_missing) or telemetry.status not in ("complete", "unavailable")


def warning_document(
    known: RunKnowledge,
    seal: ev.SealRun,
    telemetry: TelemetryFacts,
    *,
    rejected_by_peer: Mapping[str, Mapping[str, int]],
    now_ns: int,
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": known.config.run_id,
        "generated_at": rfc3339(now_ns),
        "reason": seal.reason,
        "telemetry_status": telemetry.status,
        "telemetry_reason": telemetry.reason,
        "ranks_expected": telemetry.ranks_expected,
        "ranks_finished": telemetry.ranks_finished,
        "ranks_missing": telemetry.ranks_missing,
        "records": telemetry.records,
        "frames_rejected": rejected_by_peer,
        "warnings": known.warnings,
    }


def error_document(run_id: str, error: str, now_ns: int) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "run_id": run_id, "generated_at": rfc3339(now_ns), "error": error}
