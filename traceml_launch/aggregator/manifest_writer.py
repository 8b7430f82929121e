"""The launcher's writes of `manifest.json`: all of them where no daemon ever ran, else one, after reaping it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from traceml_client.protocol import manifest
from traceml_client.protocol.artifacts import write_with_artifacts
from traceml_client.protocol.atomic_files import remove_leftovers
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import LeaseHolder, Manifest, TelemetryReason, TelemetryStatus, rfc3339
from traceml_client.protocol.node import NodeReport
from traceml_launch.outcome import TrainingEnd, training_status_of

RENEW_S: Final = manifest.LEASE_S / 3


class ManifestWriter:
    """Writes below one run folder. Where that fails it is said, and training goes on."""

    def __init__(self, run_dir: Path, holder: LeaseHolder, *, on_problem: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._holder = holder
        self._on_problem = on_problem

    def hold(self) -> None:
        """There is no daemon, or none just now: the launcher is still there."""
        lease = manifest.new_lease(self._holder, now_ns=time.time_ns())
        self._change(lambda current: msgspec.structs.replace(current, lease=lease))

    async def keep_lease(self, daemon_ended: asyncio.Event) -> None:
        """Where no daemon runs, or none any more, hold the run that trains since now; until cancelled."""
        started_at = rfc3339(time.time_ns())
        await daemon_ended.wait()
        self._change(lambda current: _with_start(current, started_at))
        while True:
            self.hold()
            await asyncio.sleep(RENEW_S)

    def let_go(self) -> None:
        """Nobody holds the run: the offline finalizer may write it."""
        self._change(lambda current: msgspec.structs.replace(current, lease=None))

    def finish(
        self,
        training: TrainingEnd,
        report: NodeReport,
        *,
        aggregator_exit_code: int | None,
        telemetry: tuple[TelemetryStatus, TelemetryReason | None] | None,
    ) -> None:
        """The last write.

        Args:
            telemetry: status and reason where the daemon could not state them; null: as it wrote them.
        """
        self._change(lambda current: _finished(current, training, report, aggregator_exit_code, telemetry))

    def _change(self, changed: Callable[[Manifest], Manifest]) -> None:
        try:
            remove_leftovers(self._run_dir)
            document = changed(manifest.read_manifest(self._run_dir))
            write_with_artifacts(self._run_dir, msgspec.structs.replace(document, updated_at=rfc3339(time.time_ns())))
        except (OSError, StoreError) as error:
            self._on_problem(f"the manifest cannot be written: {error}")


def telemetry_of(run_dir: Path) -> tuple[TelemetryStatus, TelemetryReason | None] | None:
    """What the manifest says of telemetry; null while it is pending, or if the file cannot be read."""
    try:
        current = manifest.read_manifest(run_dir)
    except StoreError:
        return None
    return None if current.telemetry_status == "pending" else (current.telemetry_status, current.telemetry_reason)


def _with_start(current: Manifest, started_at: str) -> Manifest:
    started_at = current.lifecycle.training_started_at or started_at
    return msgspec.structs.replace(
        current, lifecycle=msgspec.structs.replace(current.lifecycle, training_started_at=started_at)
    )


def _finished(
    current: Manifest,
    training: TrainingEnd,
    report: NodeReport,
    aggregator_exit_code: int | None,
    telemetry: tuple[TelemetryStatus, TelemetryReason | None] | None,
) -> Manifest:
    # A daemon that was told to stop says `interrupted`; whether training was, its launcher knows.
    is_cut = current.status == "interrupted" and training.interrupted_by is None
    if is_cut or current.status == "running" or current.lifecycle.training_ended_at is None:
        current = _with_training(current, training, report)
    if telemetry is not None:
        status, reason = telemetry
        facts = msgspec.structs.replace(current.telemetry, status=status, reason=reason)
        current = msgspec.structs.replace(current, telemetry_status=status, telemetry_reason=reason, telemetry=facts)
    return msgspec.structs.replace(current, aggregator_exit_code=aggregator_exit_code, lease=None)


def _with_training(current: Manifest, training: TrainingEnd, report: NodeReport) -> Manifest:
    """The manifest as it is known to the owner's launcher alone: its own node."""
    started = current.lifecycle.training_started_at or rfc3339(report.started_ns)
    ended = rfc3339(report.ended_ns) if report.ended_ns is not None else None
    attempts = 1 + max((end.attempt for end in report.ranks), default=0)
    node = manifest.NodeOutcome(node_rank=report.node_index, exit_code=report.exit_code, signal=report.signal)
    return msgspec.structs.replace(
        current,
        status=training_status_of(training),
        lifecycle=msgspec.structs.replace(
            current.lifecycle,
            training_started_at=started,
            training_ended_at=ended,
            finalized_at=rfc3339(time.time_ns()),
        ),
        training=manifest.TrainingOutcome(
            exit_code=training.exit_code, signal=training.signal, attempts=attempts, nodes=(node,)
        ),
    )
