"""A daemon that is killed: what it had acknowledged is reported without it, or by the next one."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path

import msgspec
import pytest

from tests.harness.daemon_process import launch_order, run_daemon_command, supervised_daemon
from tests.harness.half_written import hidden_files, leave_half_written
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from tests.harness.wire import Wire
from traceml_client.protocol import ring
from traceml_client.protocol.launch import RECORDER_FILE, layout_rank_dir
from traceml_client.protocol.manifest import read_manifest
from traceml_daemon.run.remains import collect
from traceml_daemon.storage.database import read_recovered
from traceml_daemon.storage.rows import INTERRUPTED_NS

TOKEN = "a secret"


async def killed_run(run_dir: Path, *, num_stored: int) -> SimRank:
    """A run whose daemon is killed after it has acknowledged `num_stored` steps of one rank."""
    async with supervised_daemon(launch_order(run_dir, nproc_per_node=1, has_html=True)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
        await node.join()
        await node.start_training()
        rank = await node.start_rank(SimRank(port=daemon.port))
        await rank.join()
        await rank.send_steps(num_stored)
        await rank.wait_acked()
        daemon.process.kill()
        await daemon.exit_code()
        await node.close()
        with contextlib.suppress(ConnectionError):
            await rank.close()
        report = node.report(rank_end(rank, num_steps_recorded=num_stored + 60))
    node_dir = run_dir / "nodes" / "node_0"
    node_dir.mkdir()
    (node_dir / "node.json").write_bytes(msgspec.json.encode(report))
    return rank


def damage_database(run_dir: Path) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    for name in ("telemetry.sqlite", "telemetry.sqlite-wal"):
        (run_dir / name).write_bytes(b"no database at all" * 1000)


def keep_recorder(run_dir: Path, *, num_steps: int) -> None:
    """What the launcher keeps of a living rank's ring when there is no daemon to take it."""
    memory = bytearray(ring.ring_bytes(256, 16))
    ring.initialize(memoryview(memory), 256, 16)
    words = memoryview(memory).cast("q")
    base = ring.stream_offset(0, 256) // 8
    for seq in range(num_steps):
        words[base + 8 * seq + 1], words[base + 8 * seq + 7] = 1_000_000_000 + seq, 1_000_001 + seq
        words[ring.HEAD_WORD[0]] = seq + 1
    words[ring.MARKER_WORD] = 1
    folder = run_dir / layout_rank_dir(0, 0, 0)
    folder.mkdir(parents=True)
    (folder / RECORDER_FILE).write_bytes(memory)


async def test_a_killed_daemon_loses_nothing_that_it_acknowledged(run_dir: Path) -> None:
    await killed_run(run_dir, num_stored=130)

    done = await run_daemon_command("finalize", str(run_dir))

    assert done.returncode == 0, done.stderr
    written = read_manifest(run_dir)
    assert (written.status, written.training.exit_code) == ("completed", 0)
    assert (written.telemetry_status, written.telemetry_reason) == ("degraded", "aggregator_died")
    assert (written.telemetry.records.stored, written.telemetry.records.dropped) == (130, 60)
    assert written.lease is None
    summary = msgspec.json.decode((run_dir / "final_summary.json").read_bytes())
    assert summary["ranks"][0]["attempts"][0]["steps"] == 130
    assert written.artifacts["final_summary_html"] == "final_summary.html"


async def test_the_recorders_fill_in_what_the_daemon_never_got(run_dir: Path) -> None:
    await killed_run(run_dir, num_stored=130)
    keep_recorder(run_dir, num_steps=190)

    done = await run_daemon_command("finalize", str(run_dir), "--reason", "aggregator_unresponsive")

    assert done.returncode == 0, done.stderr
    written = read_manifest(run_dir)
    records = written.telemetry.records
    assert (records.stored, records.salvaged, records.dropped) == (130, 60, 0)
    assert (written.telemetry_reason, written.telemetry.ranks_missing) == ("aggregator_unresponsive", ())
    summary = msgspec.json.decode((run_dir / "final_summary.json").read_bytes())
    assert summary["ranks"][0]["attempts"][0]["steps"] == 190

    again = await run_daemon_command("finalize", str(run_dir))
    assert again.returncode == 0
    assert read_manifest(run_dir).telemetry.records == records


@pytest.mark.parametrize("file", ["manifest.json", "nodes/node_0/node.json"])
async def test_a_damaged_file_beside_the_database_costs_only_itself(run_dir: Path, file: str) -> None:
    await killed_run(run_dir, num_stored=20)
    (run_dir / file).write_bytes(b"\0{damaged")

    done = await run_daemon_command("finalize", str(run_dir))

    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert read_manifest(run_dir).telemetry.records.stored == 20


async def test_a_damaged_database_is_one_line(run_dir: Path) -> None:
    await killed_run(run_dir, num_stored=20)
    damage_database(run_dir)

    done = await run_daemon_command("finalize", str(run_dir))

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert b"telemetry.sqlite" in done.stderr


async def test_a_run_that_is_alive_is_not_finalized_by_somebody_else(run_dir: Path) -> None:
    async with supervised_daemon(launch_order(run_dir)) as daemon:
        done = await run_daemon_command("finalize", str(run_dir))

    assert done.returncode == 1
    assert f"process {daemon.process.pid}".encode() in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--reason", "boredom"]])
async def test_what_is_no_run_folder_or_no_reason_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    done = await run_daemon_command("finalize", str(tmp_path / "nothing"), *arguments)

    assert done.returncode == (2 if arguments else 1)
    assert len(done.stderr.splitlines()) == 1


async def test_a_daemon_that_is_started_again_goes_on_where_the_killed_one_was(run_dir: Path) -> None:
    order = launch_order(run_dir, nproc_per_node=2)
    async with supervised_daemon(order) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2)
        await node.join()
        ranks = [await node.start_rank(SimRank(port=daemon.port, rank=rank, world_size=2)) for rank in range(2)]
        for rank in ranks:
            await rank.join()
        stranger = await Wire.connect(daemon.port)
        await stranger.send_bytes(b"\xff" * 64)
        assert await stranger.is_closed_by_daemon()
        await stranger.close()
        for rank in ranks:
            for _ in range(2):  # what is noted after the first commit is stored with the second
                await rank.send_steps(50)
                await rank.wait_acked()
        await ranks[0].finish()
        daemon.process.kill()
        await daemon.exit_code()
        for peer in (node, *ranks):
            await peer.hang_up()

    async with supervised_daemon(order) as daemon:
        node.port = ranks[1].port = daemon.port
        await node.join()
        assert (await ranks[1].rejoin()).next_seq == (100, 0)
        await ranks[1].send_records(80, 40)
        await ranks[1].finish()
        await ranks[1].close()
        await node.end(node.report(*map(rank_end, ranks)))
        await node.wait_finalized()
        assert await daemon.exit_code() == 0
        await node.close()

    written = daemon.manifest()
    assert (written.status, written.telemetry_status) == ("completed", "complete")
    assert (written.telemetry.records.stored, written.telemetry.records.dropped) == (220, 0)
    assert written.telemetry.frames_rejected == 1


async def test_what_a_killed_writer_left_is_removed_by_the_next_daemon(run_dir: Path) -> None:
    await killed_run(run_dir, num_stored=1)
    await asyncio.to_thread(leave_remains, run_dir)
    async with supervised_daemon(launch_order(run_dir, nproc_per_node=1)):
        await until(lambda: not remains_of(run_dir), "nothing is left")


async def test_what_a_killed_writer_left_is_removed_by_the_offline_finalizer(run_dir: Path) -> None:
    await killed_run(run_dir, num_stored=1)
    await asyncio.to_thread(leave_remains, run_dir)
    done = await run_daemon_command("finalize", str(run_dir))
    assert done.returncode == 0, done.stderr
    assert remains_of(run_dir) == []


def leave_remains(run_dir: Path) -> None:
    for name in ("manifest.json", "final_summary.json", "aggregator/finalization_warning.json"):
        leave_half_written(run_dir / name)


def remains_of(run_dir: Path) -> list[str]:
    return [name for folder in (run_dir, run_dir / "aggregator") for name in hidden_files(folder) if ".json." in name]


async def test_the_first_signal_is_known_also_after_the_daemons_death(run_dir: Path) -> None:
    """What befell ranks after it is a consequence; the report of another process has to know when it was."""
    order = launch_order(run_dir, nproc_per_node=1)
    async with supervised_daemon(order) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
        await node.join()
        await node.interrupt("SIGTERM")
        while (heard_ns := await asyncio.to_thread(first_signal_ns, run_dir)) is None:
            pass
        daemon.process.kill()
        await daemon.exit_code()
        await node.hang_up()
    async with supervised_daemon(order) as daemon:
        node.port = daemon.port
        await node.join()
        await node.interrupt("SIGTERM")
        rank = await node.start_rank(SimRank(port=daemon.port))
        await rank.join()
        await rank.send_steps(1)
        await rank.wait_acked()
        daemon.process.kill()
        await daemon.exit_code()
        for peer in (node, rank):
            await peer.hang_up()

    assert await asyncio.to_thread(first_signal_ns, run_dir) == heard_ns
    assert (await asyncio.to_thread(collect, run_dir)).interrupted_ns == heard_ns


@pytest.mark.parametrize(("delay_ns", "is_believed"), [(800_000_000, True), (3_600_000_000_000, False)])
async def test_the_first_signal_came_when_the_launcher_got_it(run_dir: Path, delay_ns: int, is_believed: bool) -> None:
    """A rank may answer it before the daemon hears of it; a clock that is an hour behind says nothing."""
    async with supervised_daemon(launch_order(run_dir, nproc_per_node=1)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
        await node.join()
        said_ns = time.time_ns() - delay_ns
        await node.interrupt("SIGTERM", at_ns=said_ns)
        while (known_ns := await asyncio.to_thread(first_signal_ns, run_dir)) is None:
            pass
        await node.hang_up()
    assert (known_ns == said_ns) is is_believed


def first_signal_ns(run_dir: Path) -> int | None:
    with contextlib.closing(sqlite3.connect(run_dir / "telemetry.sqlite")) as database:
        return read_recovered(database).number(INTERRUPTED_NS)
