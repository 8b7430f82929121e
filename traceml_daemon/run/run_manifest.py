"""A run's manifest while its daemon lives: the current value, its lease, and the order of its writes."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from traceml_client.protocol import manifest
from traceml_client.protocol.artifacts import find_artifacts
from traceml_client.protocol.manifest import Lease, LeaseHolder, Lifecycle, Manifest, rfc3339
from traceml_daemon.clock import Clock, Timer
from traceml_daemon.config import RunConfig
from traceml_daemon.run.run_files import RunFiles

RENEW_S: Final = manifest.LEASE_S / 3


class RunManifest:
    """The one writer of `manifest.json`. Every change is on its way to the disk when `update` returns."""

    def __init__(self, config: RunConfig, files: RunFiles, clock: Clock, holder: LeaseHolder) -> None:
        self._files = files
        self._clock = clock
        self._holder = holder
        self._renewal: Timer | None = None
        self.current = first_manifest(config, is_authenticated=bool(config.token))

    def update(self, **changes: Any) -> None:
        """Write it with these fields changed, and the lease renewed."""
        now_ns = self._clock.wall_ns()
        lease = Lease(holder=self._holder, expires_at=rfc3339(now_ns + int(manifest.LEASE_S * 1e9)))
        self._write(msgspec.structs.replace(self.current, updated_at=rfc3339(now_ns), lease=lease, **changes))

    def lifecycle_with(self, **changes: Any) -> Lifecycle:
        return msgspec.structs.replace(self.current.lifecycle, **changes)

    def finish(self, **changes: Any) -> None:
        """The last write of this daemon: nobody holds the run any longer."""
        self.stop_renewing()
        now_ns = self._clock.wall_ns()
        self._write(msgspec.structs.replace(self.current, updated_at=rfc3339(now_ns), lease=None, **changes))

    def keep_renewing(self) -> None:
        """Renew the lease every third of its life until `finish`."""
        self._renewal = self._clock.call_at(self._clock.now_s() + RENEW_S, self._renew)

    def stop_renewing(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None

    def _renew(self) -> None:
        self.update()
        self.keep_renewing()

    def _write(self, document: Manifest) -> None:
        self.current = document
        self._files.submit(write_with_artifacts, self._files.run_dir, document)


def first_manifest(config: RunConfig, *, is_authenticated: bool) -> Manifest:
    """A run that has just been opened; what is kept of it is known from the start."""
    world_size = config.nnodes * config.nproc_per_node
    created = rfc3339(config.created_ns)
    reason: manifest.TelemetryReason | None = None if config.has_history else "history_disabled"
    return Manifest(
        schema_version=manifest.MANIFEST_SCHEMA_VERSION,
        run_name=config.run_name,
        run_id=config.run_id,
        created_at=created,
        updated_at=created,
        status="running",
        lifecycle=Lifecycle(started_at=created),
        training=manifest.TrainingOutcome(),
        topology=manifest.Topology(nnodes=config.nnodes, nproc_per_node=config.nproc_per_node, world_size=world_size),
        telemetry_status="pending",
        telemetry_reason=reason,
        telemetry=manifest.TelemetryFacts(
            status="pending", reason=reason, ranks_expected=world_size, authenticated=is_authenticated
        ),
    )


def write_with_artifacts(run_dir: Path, document: Manifest) -> None:
    """Write a manifest that lists the files which are there now. Blocks. Raises OSError."""
    artifacts = find_artifacts(run_dir, is_pending=document.telemetry_status == "pending")
    manifest.write_manifest(run_dir, msgspec.structs.replace(document, artifacts=artifacts))


def is_held(document: Manifest) -> bool:
    """Whether a living process holds the run: on this host that can be seen, elsewhere its lease tells. Blocks."""
    lease = document.lease
    if lease is None:
        return False
    holder = lease.holder
    if holder.host == socket.gethostname():
        return holder.start_ticks != 0 and start_ticks(holder.pid) == holder.start_ticks
    return wall_ns(lease.expires_at) > time.time_ns()


def may_be_alive(document: Manifest, *, now_ns: int) -> bool:
    """Held by a living process, or its lease still runs: its launcher may be starting its daemon again. Blocks."""
    return is_held(document) or has_lease(document, now_ns=now_ns)


def has_lease(document: Manifest, *, now_ns: int) -> bool:
    return document.lease is not None and wall_ns(document.lease.expires_at) > now_ns


def lease_holder() -> LeaseHolder:
    """This process."""
    return LeaseHolder(host=socket.gethostname(), pid=os.getpid(), start_ticks=start_ticks(os.getpid()))


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat; 0 where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat[stat.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def wall_ns(text: str) -> int:
    """An RFC 3339 time of a manifest in wall-clock nanoseconds; 0 if it is none."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000_000) * 1000
    except ValueError:
        return 0
