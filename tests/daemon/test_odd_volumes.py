"""Machines that are not as one would wish: few descriptors, clocks that jump, other volumes, addresses and names."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sqlite3
import tempfile
import threading
from pathlib import Path

import pytest

from tests.harness.clock import HandClock
from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.daemon_process import launch_order, serve_process, supervised_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from tests.harness.wire import Wire
from tests.promises.steps import count_steps
from traceml_client.protocol.manifest import Manifest
from traceml_daemon.run.remains import collect
from traceml_daemon.storage import database

TOKEN = "a secret"


async def one_rank(daemon: RunningDaemon) -> Manifest:
    """A rank of a direct launch from its first to its last record; the run's last manifest."""
    rank = SimRank(port=daemon.port, token=TOKEN)
    await rank.join()
    await rank.send_steps(100)
    await rank.finish()
    await rank.close()
    return await daemon.finalized()


async def test_with_64_descriptors_strangers_do_not_keep_a_member_out(run_dir: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with supervised_daemon(launch_order(run_dir, nproc_per_node=4), num_descriptors=64) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=4)
        await node.join()
        held = [await Wire.open(daemon.port) for _ in range(100)]
        ranks = [await node.start_rank(SimRank(port=daemon.port, rank=rank, world_size=4)) for rank in range(4)]
        for rank in ranks:
            await rank.join()
            await rank.send_steps(100)
        for rank in ranks:
            await rank.finish()
            await rank.close()
        await node.end(node.report(*map(rank_end, ranks)))
        finalized = await node.wait_finalized()
        assert await daemon.exit_code() == 0
        for wire in (*held, node):
            await wire.hang_up()
    assert finalized.telemetry_status == "complete"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == hard


class JumpingClock(HandClock):
    """Its wall time may be set, as an administrator or a time server does."""

    offset_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.offset_ns


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
async def test_a_wall_clock_that_jumps_changes_no_verdict(run_dir: Path, jump_s: int) -> None:
    clock = JumpingClock()
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True), clock=clock) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(100)
        await rank.wait_acked()
        clock.offset_ns = jump_s * 1_000_000_000
        await clock.advance(60)
        await rank.send_steps(100)
        await rank.finish()
        await rank.close()
        assert await daemon.sealed(clock, limit_s=10) < 1
        manifest = await daemon.finalized()
    assert (manifest.status, manifest.telemetry_status) == ("completed", "complete")
    assert manifest.telemetry.records.stored == 200


async def test_a_disk_that_hangs_holds_up_neither_ranks_nor_the_loop(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file that must be on the disk waits for it, as on a network volume whose server is away."""
    disk, real = threading.Event(), os.fsync

    def fsync(fd: int) -> None:
        disk.wait(20)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(1000)
        await rank.wait_acked()
        assert (await rank.ping()).daemon_ns > 0
        assert not (run_dir / "manifest.json").exists()
        disk.set()
        await rank.finish()
        await rank.close()
        assert (await daemon.finalized()).telemetry_status == "complete"


@pytest.mark.parametrize("has_locks", [True, False], ids=["locks", "no locks"])
async def test_on_a_network_volume_the_database_needs_no_shared_memory(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool
) -> None:
    """The probe says that it is one. Where locks fail, here because somebody holds them, the file is kept elsewhere."""
    monkeypatch.setattr(database, "file_system_type", lambda folder: "nfs4")
    os.makedirs(run_dir)
    monkeypatch.setenv("TMPDIR", str(run_dir.parent))
    path = run_dir / "telemetry.sqlite"
    other = sqlite3.connect(path)
    if not has_locks:
        other.execute("BEGIN EXCLUSIVE")
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        assert not daemon.session.store.has_live_readers
        assert not (run_dir / "telemetry.sqlite-shm").exists()
        other.close()
        assert (await one_rank(daemon)).telemetry_status == "complete"
    assert count_steps(path) == 100
    assert [name for name in os.listdir(run_dir) if name.startswith("telemetry")] == ["telemetry.sqlite"]


def test_a_database_that_was_kept_elsewhere_is_found_again_after_a_kill(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has what was acknowledged; whoever comes next goes on with it, and puts it where it belongs."""
    monkeypatch.setattr(database, "file_system_type", lambda folder: "nfs4")
    os.makedirs(run_dir)
    monkeypatch.setenv("TMPDIR", str(run_dir.parent))
    monkeypatch.setattr(tempfile, "tempdir", None)
    path = run_dir / "telemetry.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as somebody:
        somebody.execute("BEGIN EXCLUSIVE")
        with contextlib.closing(database.DatabaseFile(path).connect()) as killed:
            killed.execute("INSERT INTO meta VALUES ('frames_rejected', '7')")
            killed.commit()
    later = database.DatabaseFile(path)
    later.connect().close()
    assert later.recovered.number("frames_rejected") == 7
    later.put_in_place()
    assert sorted(os.listdir(run_dir)) == ["telemetry.sqlite"]
    assert [name for name in os.listdir(run_dir.parent) if name.startswith("traceml-")] == []
    assert collect(run_dir).frames_rejected == 7


async def test_a_run_folder_in_memory(tmp_path: Path) -> None:
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip("no /dev/shm here")
    run_dir = folder / f"traceml-test-{os.getpid()}" / "test-run"
    try:
        async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
            assert (await one_rank(daemon)).telemetry_status == "complete"
        assert count_steps(run_dir / "telemetry.sqlite") == 100
    finally:
        for path in sorted(run_dir.parent.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        run_dir.parent.rmdir()


@pytest.mark.parametrize("host", ["::1", "::", "localhost", "0.0.0.0"])
async def test_any_address_of_this_host_can_be_listened_on(tmp_path: Path, host: str) -> None:
    if not has_ipv6() and ":" in host:
        pytest.skip("no IPv6 here")
    options = ("--aggregator-port=0", "--nproc-per-node=1", "--run-name=r", "--settle-sec=0.1")
    async with serve_process(tmp_path / "logs", f"--aggregator-bind-host={host}", *options) as daemon:
        hosts = {"::": ("::1", "127.0.0.1"), "0.0.0.0": ("127.0.0.1",)}.get(host, (host,))
        for peer in hosts:
            wire = await Wire.connect(daemon.port, peer)
            assert wire.nonce
            await wire.close()


async def test_a_host_that_has_no_address_is_one_line(tmp_path: Path) -> None:
    async with serve_process(tmp_path / "logs", "--aggregator-bind-host=no-such-host.invalid") as daemon:
        assert await daemon.exit_code() == 1
        assert daemon.process.stderr is not None
        (line,) = daemon.process.stderr.read().decode().splitlines()
    assert "cannot listen on no-such-host.invalid" in line


async def test_folders_and_names_may_have_blanks_and_letters_of_any_script(tmp_path: Path) -> None:
    logs_dir = tmp_path / "mes journaux  \xe9t\xe9" / "\u65e5\u5fd7"
    options = (
        "--aggregator-port=0",
        "--nproc-per-node=1",
        "--run-name=\xe9preuve n\xb0 7, \u0432\u0435\u0442\u0435\u0440",
        "--settle-sec=0.1",
    )
    async with serve_process(logs_dir, *options) as daemon:
        rank = SimRank(port=daemon.port, run="\xe9preuve n\xb0 7, \u0432\u0435\u0442\u0435\u0440", host="n\u0153ud-1")
        await rank.join()
        await rank.send_steps(10)
        await rank.finish()
        await rank.close()
        with contextlib.suppress(OSError):
            await until(lambda: (daemon.run_dir / "final_summary.json").exists(), "the report is there")
        await until(lambda: daemon.manifest().telemetry_status == "complete", "the run is complete")
    assert daemon.run_dir == logs_dir / "\xe9preuve n\xb0 7, \u0432\u0435\u0442\u0435\u0440"
    assert count_steps(daemon.run_dir / "telemetry.sqlite") == 10


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
