"""The daemon as a process: ready lines, exit codes, signals, and what is left after its death."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.harness.daemon_process import launch_order, run_daemon_command, serve_process, supervised_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from traceml_client.protocol import ring
from traceml_client.protocol.launch import RECORDER_FILE, layout_rank_dir
from traceml_client.protocol.manifest import read_manifest
from traceml_daemon.run_manifest import start_ticks

TOKEN = "a secret"


async def test_a_supervised_daemon_serves_its_run_and_exits_0(run_dir: Path) -> None:
    async with supervised_daemon(launch_order(run_dir, nproc_per_node=1)) as daemon:
        assert daemon.ready["pid"] == daemon.process.pid
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
        await node.join()
        rank = await node.start_rank(SimRank(port=daemon.port))
        await rank.join()
        await rank.send_steps(200)
        await rank.finish()
        await rank.close()
        await node.end(node.report(rank_end(rank)))
        ended_s = time.monotonic()
        assert (await node.wait_finalized()).telemetry_status == "complete"
        assert await daemon.exit_code() == 0
        assert time.monotonic() - ended_s < 10
        await node.close()

    assert daemon.manifest().telemetry_status == "complete"


async def test_a_port_that_is_taken_is_told_in_place_of_the_ready_line(run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with supervised_daemon(launch_order(run_dir, port=port, is_port_required=True)) as daemon:
            assert daemon.ready["is_port_taken"] is True
            assert f"127.0.0.1:{port}" in daemon.ready["error"]
            assert await daemon.exit_code() == 1
        async with supervised_daemon(launch_order(run_dir, port=port)) as daemon:
            assert daemon.port not in (0, port)


async def test_a_database_that_cannot_be_opened_is_told_too(run_dir: Path) -> None:
    damage_database(run_dir)
    async with supervised_daemon(launch_order(run_dir)) as daemon:
        assert "telemetry.sqlite" in daemon.ready["error"]
        assert await daemon.exit_code() == 1


async def test_sigterm_finalizes_what_is_there(run_dir: Path) -> None:
    async with supervised_daemon(launch_order(run_dir)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2)
        await node.join()
        rank = await node.start_rank(SimRank(port=daemon.port, world_size=2))
        await rank.join()
        await rank.send_steps(10)
        await rank.wait_acked()
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.exit_code() == 0
        await rank.close()
        await node.close()

    written = daemon.manifest()
    assert (written.status, written.telemetry_reason) == ("interrupted", "finalization_warning")
    assert [rank.rank for rank in written.telemetry.ranks_missing] == [0, 1]


async def test_a_launcher_that_dies_before_it_connects_ends_the_run(run_dir: Path) -> None:
    launcher = await asyncio.to_thread(start_child)
    ticks = await asyncio.to_thread(start_ticks, launcher.pid)
    order = launch_order(run_dir, launcher_pid=launcher.pid, launcher_start_ticks=ticks)
    async with supervised_daemon(order) as daemon:
        launcher.kill()
        launcher.communicate()
        assert await daemon.exit_code() == 0

    assert (daemon.manifest().status, daemon.manifest().training.exit_code) == ("failed", None)


def start_child() -> subprocess.Popen[bytes]:
    """A process that waits to be killed."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


async def test_without_its_descriptors_it_says_how_it_is_used() -> None:
    done = await run_daemon_command("supervise", "--config-fd", "x")

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


# --- death and the offline report -------------------------------------------------------------------------------------


async def killed_run(run_dir: Path, *, num_stored: int) -> SimRank:
    """A run whose daemon is killed after it has acknowledged `num_stored` steps of one rank."""
    async with supervised_daemon(launch_order(run_dir, nproc_per_node=1)) as daemon:
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
            await rank.send_steps(100)
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


# --- serve ------------------------------------------------------------------------------------------------------------


async def test_serve_says_where_it_listens_and_finalizes_at_sigterm(tmp_path: Path) -> None:
    logs_dir = tmp_path / "logs"
    options = ("--run-name", "mine", "--aggregator-port", "0")
    async with serve_process(logs_dir, *options, TRACEML_SETTLE_SEC="0.1", TRACEML_TOKEN=TOKEN) as daemon:
        assert daemon.ready["run_dir"] == str(logs_dir / "mine")
        assert daemon.ready["pid"] == daemon.process.pid
        secret = TOKEN.encode()
        assert secret not in visible_to_ps(daemon.process.pid)
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(10)
        await rank.finish()
        await rank.close()
        await until(lambda: daemon.manifest().status == "completed", "the run is completed")
        other = SimRank(port=daemon.port, token=TOKEN, run="other")
        await other.join()
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.exit_code() == 0
        await other.close()
        stdout, stderr = daemon.process.communicate()

    assert secret not in stdout + stderr
    assert read_manifest(logs_dir / "other").status == "interrupted"
    assert read_manifest(logs_dir / "mine").telemetry_status == "complete"
    assert all(secret not in path.read_bytes() for path in logs_dir.rglob("*") if path.is_file())
    assert {path.stat().st_mode & 0o777 for path in logs_dir.rglob("*") if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in logs_dir.rglob("*") if path.is_file()} == {0o600}


def visible_to_ps(pid: int) -> bytes:
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))


async def test_serve_goes_on_with_a_run_whose_daemon_was_killed(tmp_path: Path) -> None:
    options = ("--run-name", "mine", "--aggregator-port", "0", "--settle-sec", "0.1")
    async with serve_process(tmp_path / "logs", *options) as daemon:
        rank = SimRank(port=daemon.port)
        welcome = await rank.join()
        await rank.send_steps(50)
        await rank.wait_acked()
        daemon.process.kill()
        await daemon.exit_code()
        await rank.hang_up()
    async with serve_process(tmp_path / "logs", *options) as daemon:
        rank.port = daemon.port
        again = await rank.rejoin()
        assert (again.run_id, again.attempt, again.next_seq) == (welcome.run_id, 0, (50, 0))
        await rank.send_steps(10)
        await rank.finish()
        await rank.close()
        await until(lambda: daemon.manifest().telemetry_status == "complete", "the run is complete")

    assert daemon.manifest().telemetry.records.stored == 60
    async with serve_process(tmp_path / "logs", *options) as daemon:
        assert await daemon.exit_code() == 2


async def test_serve_takes_its_secret_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    options = ("--token-file", str(tmp_path / "token"), "--aggregator-port", "0")
    async with serve_process(tmp_path / "logs", *options) as daemon:
        rank = SimRank(port=daemon.port, token="from a file")
        await rank.join()
        await rank.close()


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (["--aggregator-port", "70000"], 2, "--aggregator-port"),
        (["--nnodes", "0"], 2, "--nnodes"),
        (["--run-name", "../x"], 2, "--run-name"),
        (["--settle-sec", "soon"], 2, "--settle-sec"),
        (["--finalize-timeout-sec", "0"], 2, "--finalize-timeout-sec"),
        (["--token-file", "/nowhere"], 2, "--token-file"),
        (["--tls-cert", "x"], 2, "--tls-cert"),
        (["--bogus"], 2, "--bogus"),
        (["extra"], 2, "extra"),
        (["--logs-dir", "/proc/nowhere"], 2, "--logs-dir"),
        (["--aggregator-bind-host", "203.0.113.1"], 1, "203.0.113.1"),
    ],
)
async def test_a_wrong_option_is_one_line_that_names_it(
    tmp_path: Path, options: list[str], code: int, named: str
) -> None:
    async with serve_process(tmp_path / "logs", *options) as daemon:
        assert await daemon.exit_code() == code
        assert daemon.process.stderr is not None
        lines = daemon.process.stderr.read().decode().splitlines()

    assert len(lines) == 1
    assert named in lines[0]


async def test_a_variable_that_does_not_parse_is_named(tmp_path: Path) -> None:
    async with serve_process(tmp_path / "logs", TRACEML_NNODES="many") as daemon:
        assert await daemon.exit_code() == 2
        assert daemon.process.stderr is not None
        assert b"TRACEML_NNODES" in daemon.process.stderr.read()
