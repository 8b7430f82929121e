"""The database's writer: order, recovery, back-pressure, and a disk that is full."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import stat
from pathlib import Path

import pytest

from tests.harness.daemon import run_config, run_daemon
from tests.harness.daemon_process import launch_order, supervised_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from tests.harness.wire import step_columns
from traceml_client.protocol import codec
from traceml_client.protocol.columns import STEP_STREAM
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.messages import Records
from traceml_daemon.storage.chunks import Chunk
from traceml_daemon.storage.database import LOCK_WAIT_S
from traceml_daemon.storage.rows import IncarnationRow, StreamTotals
from traceml_daemon.storage.store import Store

TOKEN = "a secret"


def chunk(first_seq: int, count: int, *, incarnation_id: int = 1, stream: int = 0, is_salvaged: bool = False) -> Chunk:
    return Chunk(incarnation_id, stream, first_seq, count, *step_columns(first_seq, count), is_salvaged)


def row(incarnation_id: int = 1, **changes: object) -> IncarnationRow:
    values = IncarnationRow(
        incarnation_id, 0, incarnation_id - 1, 0, incarnation_id - 1, 2, 2, 0, "h", 100, 5, 7, 0, -1,
        None, None, None, None, None, None, "[]", 0, None, None,
    )  # fmt: skip
    return values._replace(**changes)


async def test_somebody_elses_lock_is_waited_for(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "t.sqlite")
    told: list[bool] = []
    store.on_commit = lambda _chunks, is_stored: told.append(is_stored)
    store.put_incarnation(row())
    await store.drain()
    person = sqlite3.connect(tmp_path / "t.sqlite", isolation_level=None)
    person.execute("BEGIN IMMEDIATE")
    store.put(chunk(0, 10))
    draining = asyncio.create_task(store.drain())
    done, _ = await asyncio.wait([draining], timeout=2.5 * LOCK_WAIT_S)
    assert not done
    person.execute("ROLLBACK")
    await draining
    person.execute("BEGIN")
    person.execute("SELECT COUNT(*) FROM steps").fetchall()
    sealing = asyncio.create_task(store.seal())
    done, _ = await asyncio.wait([sealing], timeout=2.5 * LOCK_WAIT_S)
    assert not done
    person.close()
    await sealing
    assert (told[-1], store.failure) == (True, None)
    assert select(tmp_path, "SELECT COUNT(*) FROM steps") == [(10,)]


async def test_what_is_put_is_committed_in_order_and_told(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "t.sqlite")
    told: list[tuple[list[int], bool]] = []
    store.on_commit = lambda chunks, is_stored: told.append(([c.first_seq for c in chunks], is_stored))
    store.put_incarnation(row())
    for first in (0, 10, 20):
        assert not store.put(chunk(first, 10))
    assert not store.is_idle
    order: list[str] = []
    store.when_committed(lambda: order.append("committed"))
    await store.drain()
    order.append("drained")
    await store.seal()
    await store.seal()

    assert told == [([0, 10, 20], True)]
    assert order == ["committed", "drained"]
    assert select(tmp_path, "SELECT COUNT(*), MIN(step), MAX(step) FROM steps") == [(30, 1, 30)]


async def test_a_database_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    store = await Store.open(path)
    store.put_incarnation(row(1))
    store.put_incarnation(row(2, is_finished=1))
    store.put_meta("run_id", '"x"')
    for piece in (chunk(0, 10), chunk(10, 5, is_salvaged=True), chunk(3, 4, incarnation_id=2, stream=1)):
        store.put(piece)
    await store.seal()

    again = await Store.open(path)
    recovered = again.recovered
    await again.seal()

    assert [(r.id, r.is_finished) for r in recovered.incarnations] == [(1, 0), (2, 1)]
    assert recovered.totals(1) == (StreamTotals(15, 15, 5), StreamTotals())
    assert recovered.totals(2) == (StreamTotals(), StreamTotals(7, 4, 0))
    assert recovered.meta == {"run_id": '"x"'}


async def test_the_file_is_private_and_whole_after_the_seal(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "t.sqlite")
    store.put_incarnation(row())
    store.put(chunk(0, 10))
    await store.drain()
    modes = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in os.listdir(tmp_path)}
    await store.seal()

    assert modes == dict.fromkeys(("t.sqlite", "t.sqlite-wal", "t.sqlite-shm"), 0o600)
    assert os.listdir(tmp_path) == ["t.sqlite"]


async def test_a_live_reader_sees_what_is_committed(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "t.sqlite")
    store.put_incarnation(row())
    store.put(chunk(0, 10))
    await store.drain()
    seen = select(tmp_path, "SELECT COUNT(*) FROM steps")
    await store.seal()

    assert seen == [(10,)]


async def test_what_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.sqlite").write_bytes(b"something else entirely" * 100)

    with pytest.raises(StoreError, match=r"t\.sqlite: file is not a database"):
        await Store.open(tmp_path / "t.sqlite")


async def test_a_full_queue_says_so_and_says_when_there_is_room(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "t.sqlite", max_queued_bytes=20_000)
    rooms: list[int] = []
    store.on_room = lambda: rooms.append(1)
    store.put_incarnation(row())
    answers = [store.put(chunk(10 * number, 10)) for number in range(50)]
    await store.drain()
    assert answers.index(True) == 20_000 // (330 + 250)
    assert rooms == [1]
    assert not store.put(chunk(500, 10))
    await store.seal()


async def test_what_cannot_be_written_is_told_and_the_next_is_tried(tmp_path: Path) -> None:
    """A number that does not fit a column stands for any failing transaction."""
    store = await Store.open(tmp_path / "t.sqlite")
    told: list[tuple[int, bool]] = []
    store.on_commit = lambda chunks, is_stored: told.append((len(chunks), is_stored))
    store.put_incarnation(row())
    store.put(chunk(0, 10)._replace(first_seq=1 << 70))
    await store.drain()
    store.put(chunk(0, 10))
    await store.drain()
    failure = store.failure
    await store.seal()

    assert told == [(1, False), (1, True)]
    assert failure is not None
    assert failure.startswith("t.sqlite: ")
    assert select(tmp_path, "SELECT COUNT(*) FROM steps") == [(10,)]


async def test_ranks_are_held_back_while_the_queue_is_full(run_dir: Path) -> None:
    """Two ranks send 33 MB in one breath, where 8 MB of queue are allowed."""
    async with run_daemon(run_config(run_dir, nproc_per_node=2, is_direct=True)) as daemon:
        ranks = [SimRank(port=daemon.port, token=TOKEN, rank=rank, world_size=2) for rank in range(2)]
        for rank in ranks:
            await rank.join()
        burst = frames(2000, steps_each=250)
        await asyncio.gather(*(rank.send_bytes(burst) for rank in ranks))
        for rank in ranks:
            rank.next_seq[0] = 500_000
            await rank.finish()
            await rank.close()
        manifest = await daemon.finalized(within_s=60)

    assert daemon.session.intake.flow.num_pauses > 0
    assert not daemon.session.intake.flow.is_paused
    assert (manifest.telemetry_status, manifest.telemetry.records.stored) == ("complete", 1_000_000)


def frames(count: int, *, steps_each: int) -> bytes:
    """Frames that follow one another, all with the same durations."""
    fmt, packed = step_columns(0, steps_each)
    return b"".join(
        codec.encode(Records(STEP_STREAM, number * steps_each, steps_each, fmt, packed)) for number in range(count)
    )


async def test_a_full_disk_degrades_telemetry_and_nothing_else(run_dir: Path) -> None:
    """The kernel refuses writes beyond a file size, as a full volume would."""
    async with supervised_daemon(launch_order(run_dir, nproc_per_node=1)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
        await node.join()
        rank = await node.start_rank(SimRank(port=daemon.port))
        await rank.join()
        await rank.send_steps(1000)
        await rank.wait_acked()
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (400_000, 400_000))
        for _ in range(10):
            await rank.send_steps(3000)
            await rank.wait_acked()
        await rank.finish()
        await rank.close()
        await node.end(node.report(rank_end(rank)))
        finalized = await node.wait_finalized()
        assert await daemon.exit_code() == 0
        await node.close()

    manifest = daemon.manifest()
    records = manifest.telemetry.records
    assert manifest.status == "completed"
    assert (finalized.telemetry_status, manifest.telemetry_reason) == ("degraded", "storage_full")
    assert records.stored + records.dropped == rank.next_seq[0]
    assert 1000 <= records.stored < rank.next_seq[0]
    assert select_all_steps(run_dir / "telemetry.sqlite") == records.stored


async def test_nothing_is_taken_after_the_seal(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(10)
        await rank.finish()
        daemon.runs.stop()
        await until(daemon.session.finalized.done, "the run is finalized")
        assert await rank.connected.is_closed_by_daemon()
        await rank.close()

    assert select_all_steps(run_dir / "telemetry.sqlite") == 10


def select(folder: Path, statement: str) -> list[tuple[object, ...]]:
    database = sqlite3.connect(folder / "t.sqlite")
    try:
        return database.execute(statement).fetchall()
    finally:
        database.close()


def select_all_steps(path: Path) -> int:
    database = sqlite3.connect(path)
    try:
        return int(database.execute("SELECT SUM(count) FROM chunk").fetchone()[0] or 0)
    finally:
        database.close()
