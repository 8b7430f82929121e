"""`manifest.json`: its form, its lease, and the one writer that daemon and launcher share.

The daemon owns the file until it exits; afterwards the owner's launcher makes one last write. Where no daemon ran the
launcher is the only writer. There are never two.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from traceml_client.protocol.atomic_files import write_atomically
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.process_identity import start_ticks

MANIFEST_SCHEMA_VERSION = 1
FILE_NAME = "manifest.json"
LEASE_S = 30.0
"""How long a lease lasts after its renewal; renewed every third of it. Past it a running run is `abandoned`."""

TrainingStatus = Literal["running", "completed", "failed", "interrupted"]
TelemetryStatus = Literal["pending", "complete", "degraded", "failed", "unavailable"]
TelemetryReason = Literal[
    "finalization_warning",
    "finalization_error",
    "finalize_timeout",
    "aggregator_died",
    "aggregator_unresponsive",
    "aggregator_unreachable",
    "disabled",
    "history_disabled",
    "storage_full",
    "rows_dropped",
]


class Lifecycle(msgspec.Struct, frozen=True):
    started_at: str
    training_started_at: str | None = None
    training_ended_at: str | None = None
    finalized_at: str | None = None


class NodeOutcome(msgspec.Struct, frozen=True):
    node_rank: int
    """The node index."""
    exit_code: int | None
    signal: str | None
    why: str | None = None
    """Where the node never reported: what is known instead."""


class TrainingOutcome(msgspec.Struct, frozen=True):
    exit_code: int | None = None
    signal: str | None = None
    attempts: int = 1
    nodes: tuple[NodeOutcome, ...] = ()
    failure_sentence: str | None = None


class Topology(msgspec.Struct, frozen=True):
    nnodes: int
    nproc_per_node: int
    world_size: int


class MissingRank(msgspec.Struct, frozen=True):
    rank: int
    last_step: int
    last_seen_at: str | None
    why: str


class RecordCounts(msgspec.Struct, frozen=True):
    """Step records by what became of them; received = stored + salvaged + what the daemon itself had to drop."""

    received: int = 0
    stored: int = 0
    """Excludes `salvaged`."""
    dropped: int = 0
    """Discarded by the rank (its ring was full) or by the daemon (its disk was)."""
    salvaged: int = 0
    """Handed in by the launcher after the rank's death."""
    samples_dropped: int = 0
    """Of the other stream: process and memory samples."""


class TelemetryFacts(msgspec.Struct, frozen=True):
    status: TelemetryStatus
    reason: TelemetryReason | None
    ranks_expected: int
    ranks_finished: tuple[int, ...] = ()
    ranks_missing: tuple[MissingRank, ...] = ()
    records: RecordCounts = RecordCounts()
    frames_rejected: int = 0
    authenticated: bool = True


class LeaseHolder(msgspec.Struct, frozen=True):
    host: str
    pid: int
    start_ticks: int


class Lease(msgspec.Struct, frozen=True):
    holder: LeaseHolder
    expires_at: str


class Manifest(msgspec.Struct, frozen=True):
    schema_version: int
    run_name: str
    run_id: str
    created_at: str
    updated_at: str
    status: TrainingStatus
    lifecycle: Lifecycle
    training: TrainingOutcome
    topology: Topology
    telemetry_status: TelemetryStatus
    telemetry_reason: TelemetryReason | None
    telemetry: TelemetryFacts
    aggregator_exit_code: int | None = None
    artifacts: dict[str, str] = {}
    lease: Lease | None = None


def rfc3339(wall_ns: int) -> str:
    """A wall-clock time in nanoseconds as RFC 3339 UTC with microseconds."""
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{nanos // 1000:06d}Z"


def wall_ns(text: str) -> int:
    """An RFC 3339 time of a manifest in wall-clock nanoseconds; 0 if it is none."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000_000) * 1000
    except ValueError:
        return 0


def lease_holder() -> LeaseHolder:
    """This process."""
    return LeaseHolder(host=socket.gethostname(), pid=os.getpid(), start_ticks=start_ticks(os.getpid()))


def new_lease(holder: LeaseHolder, *, now_ns: int) -> Lease:
    return Lease(holder=holder, expires_at=rfc3339(now_ns + int(LEASE_S * 1e9)))


def has_lease(document: Manifest, *, now_ns: int) -> bool:
    """Whether somebody has said lately that the run is alive."""
    return document.lease is not None and wall_ns(document.lease.expires_at) > now_ns


def first_manifest(
    *,
    run_name: str,
    run_id: str,
    created_ns: int,
    nnodes: int,
    nproc_per_node: int,
    reason: TelemetryReason | None = None,
    is_authenticated: bool = True,
) -> Manifest:
    """A run that has just been opened, held by nobody so far."""
    world_size, created = nnodes * nproc_per_node, rfc3339(created_ns)
    return Manifest(
        schema_version=MANIFEST_SCHEMA_VERSION,
        run_name=run_name,
        run_id=run_id,
        created_at=created,
        updated_at=created,
        status="running",
        lifecycle=Lifecycle(started_at=created),
        training=TrainingOutcome(),
        topology=Topology(nnodes=nnodes, nproc_per_node=nproc_per_node, world_size=world_size),
        telemetry_status="pending",
        telemetry_reason=reason,
        telemetry=TelemetryFacts(
            status="pending", reason=reason, ranks_expected=world_size, authenticated=is_authenticated
        ),
    )


def encode_json(document: Any) -> bytes:
    """Any of our documents as indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def write_manifest(run_dir: Path, manifest: Manifest) -> None:
    """Raises OSError as `write_atomically`."""
    write_atomically(run_dir / FILE_NAME, encode_json(manifest))


def read_document(path: Path) -> bytes:
    """A file of ours. What has its name and is a pipe is not waited for. Raises OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read()


def read_manifest(run_dir: Path) -> Manifest:
    """Raises StoreError with one line that names the file if it is missing, damaged or of another form."""
    path = run_dir / FILE_NAME
    try:
        return msgspec.json.decode(read_document(path), type=Manifest)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None
