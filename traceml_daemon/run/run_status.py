"""`traceml status`: what a run's folder says of the run, live or past. Only reads; nothing in the folder changes.

A live run is seen through its database, which other processes may read while it is written; a finished one through its
summary; either through its manifest alone where that is all there is.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from traceml_client.protocol.artifacts import SUMMARY_FILE
from traceml_client.protocol.columns import STEP_STREAM
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_client.protocol.manifest import (
    Manifest,
    RecordCounts,
    TelemetryFacts,
    TrainingStatus,
    has_lease,
    read_manifest,
    wall_ns,
)
from traceml_daemon.report.form import RankSection, TrainingSection
from traceml_daemon.report.saved import read_saved
from traceml_daemon.storage import schema
from traceml_daemon.storage.database import read_recovered
from traceml_daemon.storage.rows import IncarnationRow

STATUS_SCHEMA_VERSION: Final = 1
SUSPECT_S: Final = 10.0
"""A rank sends a sample each second; one that is silent for this long has lost its connection or its life."""
STALLED_S: Final = 300.0
"""As the default of --stall-timeout-sec."""
_LOCK_S: Final = 1.0


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    state: str
    """expected, active, suspect, finished or lost."""
    last_step: int
    last_seen_s: float | None
    """Seconds ago; null where it was never seen."""
    last_step_s: float | None = None
    """How long ago its last step ended; null where that is not known."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`traceml status --json`."""

    schema_version: int = STATUS_SCHEMA_VERSION
    run_name: str
    run_id: str
    run_dir: str
    status: TrainingStatus | Literal["abandoned"]
    training: TrainingSection
    telemetry: TelemetryFacts
    failure_sentence: str | None
    stalled_ranks: tuple[int, ...]
    """Of a live run: had completed a step, and none for STALLED_S."""
    ranks: tuple[RankStatus, ...]

    @property
    def is_healthy(self) -> bool:
        return self.status in ("running", "completed") and not self.stalled_ranks


def read_status(run_dir: Path, *, now_ns: int) -> RunStatus:
    """Blocks.

    Raises:
        StoreError: the manifest is missing or damaged.
    """
    found = _manifest_of(run_dir)
    is_live = found.status == "running" and has_lease(found, now_ns=now_ns)
    is_open = found.telemetry_status == "pending"
    seen = (_from_database(run_dir, now_ns) if is_open else _from_summary(run_dir, now_ns)) or _Seen()
    ranks = tuple(_all_ranks(found, seen, is_live=is_live))
    telemetry = found.telemetry
    if is_open:
        finished = tuple(rank.rank for rank in ranks if rank.state == "finished")
        telemetry = msgspec.structs.replace(telemetry, ranks_finished=finished, records=seen.records)
    return RunStatus(
        run_name=found.run_name,
        run_id=found.run_id,
        run_dir=str(run_dir),
        status="abandoned" if found.status == "running" and not is_live else found.status,
        training=_training(found),
        telemetry=telemetry,
        failure_sentence=found.training.failure_sentence,
        stalled_ranks=tuple(rank.rank for rank in ranks if is_live and _is_stalled(rank)),
        ranks=ranks,
    )


def _manifest_of(run_dir: Path) -> Manifest:
    try:
        return read_manifest(run_dir)
    except StoreError as error:
        if (run_dir / DATABASE_FILE).is_file():
            raise StoreError(f"{error}; traceml view {run_dir} makes a report from its database") from None
        raise


class _Seen(msgspec.Struct, frozen=True):
    ranks: Mapping[int, RankStatus] = {}
    records: RecordCounts = RecordCounts()


def _training(found: Manifest) -> TrainingSection:
    outcome, lifecycle = found.training, found.lifecycle
    times = lifecycle.training_started_at, lifecycle.training_ended_at
    return TrainingSection(found.status, outcome.exit_code, outcome.signal, *times, outcome.nodes)


def _all_ranks(found: Manifest, seen: _Seen, *, is_live: bool) -> Iterator[RankStatus]:
    """Those that were seen, those that the manifest names, and those that nobody has heard of.

    Where nobody listened, torchrun's own success says that its ranks finished.
    """
    missing = {rank.rank: rank for rank in found.telemetry.ranks_missing}
    is_well = found.status == "completed" and found.telemetry_status == "unavailable"
    unheard = "expected" if is_live else "finished" if is_well else "lost"
    for rank in sorted({*seen.ranks, *missing, *found.telemetry.ranks_finished, *range(found.topology.world_size)}):
        known = seen.ranks.get(rank)
        if known is not None:
            is_lost = not is_live and known.state in ("expected", "active", "suspect")
            yield msgspec.structs.replace(known, state="lost") if is_lost else known
            continue
        state = "finished" if rank in found.telemetry.ranks_finished else unheard
        last_step = missing[rank].last_step if rank in missing else 0
        yield RankStatus(rank=rank, state=state, last_step=last_step, last_seen_s=None)


def _is_stalled(rank: RankStatus) -> bool:
    return rank.state != "finished" and rank.last_step_s is not None and rank.last_step_s > STALLED_S


# --- a finished run ---------------------------------------------------------------------------------------------------


class _SummaryRanks(msgspec.Struct, frozen=True):
    """The part of a summary that is needed here; the rest may be of another version."""

    ranks: tuple[RankSection, ...]


def _from_summary(run_dir: Path, now_ns: int) -> _Seen | None:
    try:
        summary = read_saved(run_dir / SUMMARY_FILE, _SummaryRanks)
    except StoreError:
        return None
    ranks = {}
    for rank, last in ((section.rank, section.attempts[-1]) for section in summary.ranks if section.attempts):
        seen_s = None if last.last_at is None else _ago_s(wall_ns(last.last_at), now_ns)
        ranks[rank] = RankStatus(rank=rank, state=last.state, last_step=last.last_step, last_seen_s=seen_s)
    return _Seen(ranks)


# --- a live or unfinished one -----------------------------------------------------------------------------------------


def _from_database(run_dir: Path, now_ns: int) -> _Seen | None:
    """Null where there is none, or where its daemon has it to itself (network volumes)."""
    path = run_dir / DATABASE_FILE
    if not path.is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.execute(f"PRAGMA busy_timeout={int(_LOCK_S * 1000)}").fetchone()
            return _seen_in(database, now_ns)
    except sqlite3.Error:
        return None


def _seen_in(database: sqlite3.Connection, now_ns: int) -> _Seen:
    recovered = read_recovered(database)
    ends = {(row[0], row[1]): _last_end_ns(*row[2:4]) for row in database.execute(schema.SELECT_LAST_CHUNKS)}
    youngest: dict[int, tuple[tuple[int, int], RankStatus]] = {}
    for row in recovered.incarnations:
        monotonic = {stream: ends[row.id, stream] for stream in (0, 1) if (row.id, stream) in ends}
        last_step = recovered.totals(row.id)[STEP_STREAM].next_seq
        order = (row.started_ns or row.first_at_ns or 0, row.attempt)
        if row.rank not in youngest or youngest[row.rank][0] <= order:
            youngest[row.rank] = order, _rank_status(row, monotonic, last_step, now_ns)
    totals = [each for (_, stream), each in recovered.streams.items() if stream == STEP_STREAM]
    received, salvaged = sum(each.num_records for each in totals), sum(each.num_salvaged for each in totals)
    dropped = sum(each.next_seq for each in totals) - received
    counts = RecordCounts(received=received, stored=received - salvaged, dropped=dropped, salvaged=salvaged)
    return _Seen({rank: status for rank, (_, status) in youngest.items()}, counts)


def _rank_status(row: IncarnationRow, monotonic: Mapping[int, int], last_step: int, now_ns: int) -> RankStatus:
    """`monotonic`: per stream, when the rank made its last record, on its own clock."""
    wall = {stream: end + row.wall_minus_monotonic_ns + row.clock_offset_ns for stream, end in monotonic.items()}
    times = [*wall.values(), *(time for time in (row.last_at_ns,) if time is not None)]
    seen_s = _ago_s(max(times), now_ns) if times else None
    is_silent = seen_s is None or seen_s > SUSPECT_S
    step_s = _ago_s(wall[STEP_STREAM], now_ns) if STEP_STREAM in wall else None
    state = "finished" if row.is_finished else "expected" if not times else "suspect" if is_silent else "active"
    return RankStatus(rank=row.rank, state=state, last_step=last_step, last_seen_s=seen_s, last_step_s=step_s)


def _last_end_ns(count: int, packed: Any) -> int:
    """Of a chunk, whose columns begin with the end times."""
    return int.from_bytes(packed[8 * (count - 1) : 8 * count], "little", signed=True)


def _ago_s(wall: int, now_ns: int) -> float:
    return round(max(0, now_ns - wall) / 1e9, 1)
