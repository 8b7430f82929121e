"""What a daemon that is gone left behind: manifest, database, node reports, recorders, read into one value.

Nothing is trusted: what is damaged is passed over and told, as long as something remains to report on.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from traceml_client.protocol import launch, manifest
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import Manifest, wall_ns
from traceml_client.protocol.node import NodeReport
from traceml_daemon.config import RunConfig
from traceml_daemon.core.events import Incarnation, RankPlace
from traceml_daemon.peers.roster import Roster
from traceml_daemon.peers.slots import RankSlot
from traceml_daemon.run.recorder_files import RecorderFile, find_recorders, salvage, take_words
from traceml_daemon.run.taking_up import take_up
from traceml_daemon.storage import schema
from traceml_daemon.storage.chunks import Chunk
from traceml_daemon.storage.database import SEALING_STATEMENTS, DatabaseFile
from traceml_daemon.storage.replay import sound_reports
from traceml_daemon.storage.rows import FRAMES_REJECTED, INTERRUPTED_NS, Recovered


@dataclass(slots=True, kw_only=True)
class Remains:
    """One run, as found on disk."""

    config: RunConfig
    manifest: Manifest | None
    roster: Roster
    node_reports: dict[int, NodeReport]
    owner_node: int | None
    is_authenticated: bool
    interrupted_ns: int | None = None
    frames_rejected: int = 0
    warnings: list[str] = field(default_factory=list)


def collect(run_dir: Path) -> Remains:
    """Read everything, put recorders' records into the database, and make the database whole. Blocks.

    Raises:
        StoreError: neither a manifest nor a database says what run this is, or the database is damaged.
    """
    found = read_manifest(run_dir)
    if found is not None and found.telemetry.reason == "history_disabled":
        remains = _assemble(run_dir, found, Recovered(), has_history=False)
        deque(_salvaged(remains), maxlen=0)
        _take_ends(remains)
        return remains
    database, file = _open_database(run_dir, must_exist=found is None)
    try:
        remains = _assemble(run_dir, found, file.recovered, has_history=True)
        database.executemany(schema.INSERT_CHUNK, _salvaged(remains))
        _take_ends(remains)
        _close_database(database, remains.roster)
    except sqlite3.Error as error:
        raise StoreError(f"{run_dir / launch.DATABASE_FILE}: {error}") from None
    finally:
        database.close()
    file.put_in_place()
    return remains


# --- the parts --------------------------------------------------------------------------------------------------------


def read_manifest(run_dir: Path) -> Manifest | None:
    """Null where it cannot be read."""
    try:
        return manifest.read_manifest(run_dir)
    except StoreError:
        return None


def _open_database(run_dir: Path, *, must_exist: bool) -> tuple[sqlite3.Connection, DatabaseFile]:
    path = run_dir / launch.DATABASE_FILE
    if must_exist and not path.is_file():
        raise StoreError(f"{run_dir} has neither a readable manifest nor a database: no run folder of ours")
    file = DatabaseFile(path)
    try:
        return file.connect(), file
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{path}: {error}") from None


def _assemble(run_dir: Path, found: Manifest | None, recovered: Recovered, *, has_history: bool) -> Remains:
    meta = {key: _json(text) for key, text in recovered.meta.items()}
    config = _config(run_dir, found, meta, has_history=has_history)
    roster = Roster(config)
    take_up(recovered, roster)
    authenticated = found.telemetry.authenticated if found is not None else bool(meta.get("is_authenticated"))
    owner = meta.get("owner_node")
    return Remains(
        config=config,
        manifest=found,
        roster=roster,
        node_reports=sound_reports(dict(_node_reports(run_dir, recovered.meta))),
        owner_node=owner if isinstance(owner, int) else None,
        is_authenticated=authenticated,
        interrupted_ns=recovered.number(INTERRUPTED_NS),
        frames_rejected=recovered.number(FRAMES_REJECTED) or 0,
    )


def _config(run_dir: Path, found: Manifest | None, meta: dict[str, Any], *, has_history: bool) -> RunConfig:
    """The manifest's word first; the database has the same facts where that is damaged."""
    if found is not None:
        nnodes, nproc_per_node = found.topology.nnodes, found.topology.nproc_per_node
        run_name, run_id, created_ns = found.run_name, found.run_id, wall_ns(found.created_at)
    else:
        nnodes, nproc_per_node = _whole(meta, "nnodes", 1), _whole(meta, "nproc_per_node", 0)
        run_name, run_id = str(meta.get("run_name", run_dir.name)), str(meta.get("run_id", ""))
        created_ns = _whole(meta, "created_ns", 0)
    return RunConfig(
        run_name=run_name,
        run_id=run_id,
        run_dir=run_dir,
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        has_history=has_history,
        has_html=meta.get("has_html") is True,
        is_direct=meta.get("is_direct") is True,
        created_ns=created_ns,
    )


def _node_reports(run_dir: Path, meta: dict[str, str]) -> Iterator[tuple[int, NodeReport]]:
    """What the database has of them, then the files, which are written later and know more."""
    texts = [(key, text.encode()) for key, text in meta.items() if key.startswith("node_")]
    for path in sorted((run_dir / "nodes").glob(f"node_*/{launch.NODE_FILE}")):
        try:
            texts.append((path.parent.name, path.read_bytes()))
        except OSError:
            continue
    for name, data in texts:
        index = name.removeprefix("node_")
        try:
            report = msgspec.json.decode(data, type=NodeReport)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if index.isdecimal() and int(index) == report.node_index:
            yield report.node_index, report


def _slot_of(remains: Remains, recorder: RecorderFile) -> RankSlot:
    """The slot that a recorder belongs to: by its node and attempt, and by the rank that its folder names."""
    node_index, rank, attempt = recorder.node_index, recorder.rank, recorder.attempt
    for slot in remains.roster:
        if (slot.incarnation.node_index, slot.incarnation.attempt, slot.place.rank) == (node_index, attempt, rank):
            return slot
    if node_index in remains.node_reports:
        report = remains.node_reports[node_index]
        for end in report.ranks:
            if (end.rank, end.attempt) == (rank, attempt):
                return remains.roster.from_report(node_index, end, report.host)
    config = remains.config
    nproc = max(1, config.nproc_per_node)
    place = RankPlace(rank, max(rank + 1, config.nnodes * nproc), nproc, attempt, host="", pid=0)
    return remains.roster.add(Incarnation(node_index, rank % nproc, attempt), place, start_ticks=0)


def _salvaged(remains: Remains) -> Iterator[Chunk]:
    """What no daemon had: the records of the recorders, one recorder at a time; their slots take the rest of it."""
    for recorder in find_recorders(remains.config.run_dir):
        slot = _slot_of(remains, recorder)
        yield from salvage(recorder, slot)
        take_words(recorder, slot)


def _take_ends(remains: Remains) -> None:
    for node_index, report in remains.node_reports.items():
        for end in report.ranks:
            slot = remains.roster.from_report(node_index, end, report.host)
            slot.take_end(end, is_final=True)
            slot.is_finished = slot.is_finished or end.is_marker_sent
    for slot in remains.roster:
        slot.close()


def _close_database(database: sqlite3.Connection, roster: Roster) -> None:
    database.executemany(schema.UPSERT_INCARNATION, [slot.row() for slot in roster])
    database.commit()
    for statement in SEALING_STATEMENTS:
        database.execute(statement).fetchall()


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _whole(meta: dict[str, Any], key: str, default: int) -> int:
    value = meta.get(key)
    return value if isinstance(value, int) else default
