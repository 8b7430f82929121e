"""`finalize RUN_DIR`: the reports of a run whose daemon is gone.

From the database, the nodes' `node.json` and the recorders that launchers kept, in the order of a live finalization:
records first, then the verdict, the reports, and last the manifest. Blocks; there is no loop here.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec

from traceml_client.protocol.artifacts import write_with_artifacts
from traceml_client.protocol.atomic_files import remove_leftovers
from traceml_client.protocol.errors import ConfigError, StoreError
from traceml_client.protocol.launch import AGGREGATOR_DIR
from traceml_client.protocol.manifest import TelemetryFacts, TelemetryReason, rfc3339, wall_ns
from traceml_daemon.core.events import SealRun
from traceml_daemon.errors import ReportError
from traceml_daemon.report.facts import Reported
from traceml_daemon.run.final_files import (
    ERROR_FILE,
    WARNING_FILE,
    error_document,
    forget_earlier,
    has_warnings,
    warning_document,
    write_reports,
)
from traceml_daemon.run.remains import Remains, collect, read_manifest
from traceml_daemon.run.run_facts import RunKnowledge, final_fields, run_facts, telemetry_facts
from traceml_daemon.run.run_files import write_json
from traceml_daemon.run.run_manifest import first_manifest, is_held
from traceml_daemon.storage.replay import replay
from traceml_daemon.storage.reserve import Reserve

CAUSES = ("aggregator_died", "aggregator_unresponsive")


def parse_reason(text: str) -> TelemetryReason:
    """Raises ConfigError."""
    if text not in CAUSES:
        raise ConfigError(f"--reason {text!r}: one of {', '.join(CAUSES)}")
    return cast(TelemetryReason, text)


def finalize(run_dir: Path, *, reason: TelemetryReason | None) -> None:
    """Write reports and manifest of a run that no daemon holds any more; `reason`: null where nothing had gone wrong.

    Raises:
        StoreError: it is no run folder, its database is damaged, or a daemon still holds it.
        ReportError: a report could not be made; the manifest and finalization_error.json say so too.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if not run_dir.is_dir():
        raise StoreError(f"{run_dir} is no run folder")
    _refuse_if_held(run_dir)
    remove_leftovers(run_dir, run_dir / AGGREGATOR_DIR)
    Reserve(run_dir).release()
    remains = collect(run_dir)
    replayed = replay(remains.config, remains.roster, remains.node_reports, owner_node=remains.owner_node)
    assert replayed.seal is not None
    started_ns, ended_ns = _training_times(remains)
    known = RunKnowledge(
        config=remains.config,
        roster=remains.roster,
        core=replayed.core,
        node_reports=remains.node_reports,
        training_started_ns=started_ns,
        training_ended_ns=ended_ns,
        interrupted_ns=remains.interrupted_ns,
        warnings=(*remains.warnings, *replayed.warnings),
        frames_rejected=remains.frames_rejected,
        is_authenticated=remains.is_authenticated,
        cause=reason,
    )
    _write(remains, known, replayed.seal)


def _write(remains: Remains, known: RunKnowledge, seal: SealRun) -> None:
    run_dir, now_ns = known.config.run_dir, time.time_ns()
    forget_earlier(run_dir)
    telemetry = telemetry_facts(known, seal)
    _warn(known, seal, telemetry)
    facts = run_facts(known, seal, telemetry, generated_ns=now_ns)
    try:
        reported = write_reports(run_dir, facts, known.config)
    except ReportError as error:
        write_json(run_dir / ERROR_FILE, error_document(known.config.run_id, str(error), now_ns))
        failed = msgspec.structs.replace(telemetry, status="failed", reason="finalization_error")
        _write_manifest(remains, known, seal, failed, error.reported)
        raise
    if reported.faults:
        _warn(replace(known, warnings=(*known.warnings, *reported.faults)), seal, telemetry)
    _write_manifest(remains, known, seal, telemetry, reported)


def _warn(known: RunKnowledge, seal: SealRun, telemetry: TelemetryFacts) -> None:
    """finalization_warning.json, where there is something to warn of."""
    if has_warnings(known.warnings, telemetry):
        document = warning_document(known, seal, telemetry, rejected_by_peer={}, now_ns=time.time_ns())
        write_json(known.config.run_dir / WARNING_FILE, document)


def _write_manifest(
    remains: Remains, known: RunKnowledge, seal: SealRun, telemetry: TelemetryFacts, reported: Reported
) -> None:
    now_ns = time.time_ns()
    before = remains.manifest or first_manifest(known.config, is_authenticated=known.is_authenticated)
    ended_ns = known.training_ended_ns
    lifecycle = msgspec.structs.replace(
        before.lifecycle,
        training_ended_at=None if ended_ns is None else rfc3339(ended_ns),
        finalized_at=rfc3339(now_ns),
    )
    changes = final_fields(known, seal, telemetry, reported.failure_sentence)
    document = msgspec.structs.replace(before, updated_at=rfc3339(now_ns), lifecycle=lifecycle, lease=None, **changes)
    write_with_artifacts(known.config.run_dir, document)


def _training_times(remains: Remains) -> tuple[int | None, int | None]:
    """When training began, and ended: when the owner's launcher said; without that, with the last sign of any rank."""
    lifecycle = remains.manifest.lifecycle if remains.manifest is not None else None
    started = lifecycle.training_started_at if lifecycle is not None else None
    ended = lifecycle.training_ended_at if lifecycle is not None else None
    report = remains.node_reports.get(remains.owner_node or 0)
    signs = [slot.last_at_ns for slot in remains.roster if slot.last_at_ns is not None]
    ended_ns = wall_ns(ended) if ended else report.ended_ns if report is not None else max(signs, default=None)
    return wall_ns(started) if started else None, ended_ns


def _refuse_if_held(run_dir: Path) -> None:
    """Raises StoreError if the run's holder is alive, or may be: one on another host is until its lease ends."""
    found = read_manifest(run_dir)
    if found is not None and found.lease is not None and is_held(found):
        holder = found.lease.holder
        raise StoreError(f"{run_dir} is held by process {holder.pid} on {holder.host}, which is still alive")
