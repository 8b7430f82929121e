"""The launcher's writes of `manifest.json`: all of them where no daemon ever ran, else one, after reaping it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceml_client.protocol import manifest
from traceml_client.protocol.artifacts import find_artifacts
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import Lease, LeaseHolder, Manifest, TelemetryReason, TelemetryStatus, rfc3339
from traceml_client.protocol.node import NodeReport
from traceml_launch.outcome import TrainingEnd, training_status_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestWriter:
    """Writes below one run folder; every method raises OSError, and StoreError where the file is damaged."""

    run_dir: Path

    def take_over(self, holder: LeaseHolder, *, training_started_ns: int) -> None:
        """There is no daemon, or none any more: from here on the launcher holds the run."""
        current = manifest.read_manifest(self.run_dir)
        lifecycle = current.lifecycle
        if lifecycle.training_started_at is None:
            lifecycle = msgspec.structs.replace(lifecycle, training_started_at=rfc3339(training_started_ns))
        self._write(msgspec.structs.replace(current, lifecycle=lifecycle, lease=_lease(holder)))

    def renew(self, holder: LeaseHolder) -> None:
        """The launcher is still there."""
        self._write(msgspec.structs.replace(manifest.read_manifest(self.run_dir), lease=_lease(holder)))

    def let_go(self) -> None:
        """Nobody holds the run: the offline finalizer may write it."""
        self._write(msgspec.structs.replace(manifest.read_manifest(self.run_dir), lease=None))

    def finish(
        self,
        training: TrainingEnd,
        report: NodeReport,
        *,
        aggregator_exit_code: int | None,
        telemetry: tuple[TelemetryStatus, TelemetryReason | None] | None,
    ) -> Manifest:
        """The last write.

        Args:
            telemetry: status and reason where the daemon could not state them; null: as it wrote them.
        """
        current = manifest.read_manifest(self.run_dir)
        # A daemon that was told to stop says `interrupted`; whether training was, its launcher knows.
        is_cut = current.status == "interrupted" and training.interrupted_by is None
        if is_cut or current.status == "running" or current.lifecycle.training_ended_at is None:
            current = _with_training(current, training, report)
        if telemetry is not None:
            status, reason = telemetry
            facts = msgspec.structs.replace(current.telemetry, status=status, reason=reason)
            current = msgspec.structs.replace(
                current, telemetry_status=status, telemetry_reason=reason, telemetry=facts
            )
        current = msgspec.structs.replace(current, aggregator_exit_code=aggregator_exit_code, lease=None)
        self._write(current)
        return current

    def _write(self, document: Manifest) -> None:
        artifacts = find_artifacts(self.run_dir, is_pending=document.telemetry_status == "pending")
        manifest.write_manifest(
            self.run_dir,
            msgspec.structs.replace(document, updated_at=rfc3339(time.time_ns()), artifacts=artifacts),
        )


def telemetry_of(run_dir: Path) -> tuple[TelemetryStatus, TelemetryReason | None] | None:
    """What the manifest says of telemetry; null while it is pending, or if the file cannot be read."""
    try:
        current = manifest.read_manifest(run_dir)
    except StoreError:
        return None
    return None if current.telemetry_status == "pending" else (current.telemetry_status, current.telemetry_reason)


def _lease(holder: LeaseHolder) -> Lease:
    return Lease(holder=holder, expires_at=rfc3339(time.time_ns() + int(manifest.LEASE_S * 1e9)))


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
