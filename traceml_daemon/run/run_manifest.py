"""A run's manifest while its daemon lives: the current value, its lease, and the order of its writes."""

from __future__ import annotations

import socket
import time
from typing import Any, Final

import msgspec

from traceml_client.protocol import manifest
from traceml_client.protocol.artifacts import write_with_artifacts
from traceml_client.protocol.manifest import LeaseHolder, Lifecycle, Manifest, rfc3339
from traceml_client.protocol.process_identity import start_ticks
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
        lease = manifest.new_lease(self._holder, now_ns=now_ns)
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
    return manifest.first_manifest(
        run_name=config.run_name,
        run_id=config.run_id,
        created_ns=config.created_ns,
        nnodes=config.nnodes,
        nproc_per_node=config.nproc_per_node,
        reason=None if config.has_history else "history_disabled",
        is_authenticated=is_authenticated,
    )


def is_held(document: Manifest) -> bool:
    """Whether a living process holds the run: on this host that can be seen, elsewhere its lease tells. Blocks."""
    lease = document.lease
    if lease is None:
        return False
    holder = lease.holder
    if holder.host == socket.gethostname():
        return holder.start_ticks != 0 and start_ticks(holder.pid) == holder.start_ticks
    return manifest.wall_ns(lease.expires_at) > time.time_ns()


def may_be_alive(document: Manifest, *, now_ns: int) -> bool:
    """Held by a living process, or its lease still runs: its launcher may be starting its daemon again. Blocks."""
    return is_held(document) or manifest.has_lease(document, now_ns=now_ns)
