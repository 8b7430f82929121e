"""The daemon as a process: ready lines, exit codes, signals, and what is left after its death."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.harness.daemon_process import launch_order, run_daemon_command, supervised_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from traceml_daemon.run.run_manifest import start_ticks

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


async def test_a_supervised_daemon_starts_without_what_it_may_never_need() -> None:
    """Start-up stands in front of every training, and memory stays for as long as it runs."""
    code = (
        "import sys, traceml_daemon.service\n"
        "heavy = {'numpy', 'typer', 'rich', 'torch', 'traceml_daemon.report.write', 'traceml_daemon.cli', 'tomllib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, check=True)

    assert done.stdout.strip() == b"[]"


async def test_what_makes_reports_is_imported_when_the_first_rank_has_finished(run_dir: Path) -> None:
    async with supervised_daemon(launch_order(run_dir)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2)
        await node.join()
        ranks = [await node.start_rank(SimRank(port=daemon.port, rank=rank, world_size=2)) for rank in range(2)]
        for rank in ranks:
            await rank.join()
        assert not has_numpy(daemon.process.pid)
        await ranks[0].finish()
        await until(lambda: has_numpy(daemon.process.pid), "numpy is there")
        assert daemon.manifest().status == "running"
        for peer in (*ranks, node):
            await peer.close()


def has_numpy(pid: int) -> bool:
    return "numpy" in Path(f"/proc/{pid}/maps").read_text()


async def test_without_its_descriptors_it_says_how_it_is_used() -> None:
    done = await run_daemon_command("supervise", "--config-fd", "x")

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def damage_database(run_dir: Path) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    for name in ("telemetry.sqlite", "telemetry.sqlite-wal"):
        (run_dir / name).write_bytes(b"no database at all" * 1000)
