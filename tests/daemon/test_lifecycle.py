"""A run from its first peer to its last file, as seen from outside the daemon."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

from tests.harness.clock import HandClock
from tests.harness.daemon import run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until

TOKEN = "a secret"


async def test_a_healthy_run_is_complete(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2)
        welcome = await node.join()
        assert (welcome.run_name, welcome.run_dir) == ("test-run", str(run_dir))
        await node.start_training()
        ranks = [SimRank(port=daemon.port, rank=rank, world_size=2) for rank in range(2)]
        for rank in ranks:
            await node.start_rank(rank)
            await rank.join()
            await rank.send_steps(250)
            await rank.wait_acked()
            await rank.finish()
            await rank.close()
        await node.end(node.report(*map(rank_end, ranks)))
        finalized = await node.wait_finalized()

        manifest = await daemon.finalized()
        await node.close()

    assert (finalized.telemetry_status, finalized.telemetry_reason) == ("complete", None)
    assert (manifest.status, manifest.telemetry_status) == ("completed", "complete")
    assert manifest.training.exit_code == 0
    assert manifest.telemetry.ranks_finished == (0, 1)
    assert manifest.telemetry.records.stored == 500
    assert manifest.telemetry.records.dropped == 0
    assert manifest.lease is None
    assert {"final_summary_json", "final_summary_txt", "telemetry_database"} <= set(manifest.artifacts)
    assert all((run_dir / path).is_file() for path in manifest.artifacts.values())


async def test_the_database_opens_with_plain_sqlite(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(130, per_frame=10)
        await rank.finish()
        await rank.close()
        await daemon.finalized()

    assert database_files(run_dir) == ["telemetry.sqlite"]
    assert stat.S_IMODE((run_dir / "telemetry.sqlite").stat().st_mode) == 0o600
    database = sqlite3.connect(run_dir / "telemetry.sqlite")
    rows = database.execute("SELECT step, step_ns, h2d_ns FROM steps WHERE rank = 0 ORDER BY step").fetchall()
    database.close()
    assert rows == [(step, 1_000_000 + step, None) for step in range(1, 131)]


async def test_a_direct_launch_ends_when_every_rank_has_finished(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, is_direct=True)) as daemon:
        ranks = [SimRank(port=daemon.port, token=TOKEN, rank=rank, world_size=2) for rank in range(2)]
        for rank in ranks:
            welcome = await rank.join()
            assert (welcome.node_index, welcome.attempt) == (0, 0)
        for rank in ranks:
            await rank.send_steps(10)
            await rank.finish()
            await rank.close()
        manifest = await daemon.finalized()

    assert (manifest.status, manifest.training.exit_code, manifest.telemetry_status) == ("completed", None, "complete")
    lifecycle = manifest.lifecycle
    assert lifecycle.training_started_at is not None
    assert lifecycle.training_ended_at is not None
    assert lifecycle.started_at <= lifecycle.training_started_at <= lifecycle.training_ended_at


async def test_ranks_that_hang_up_after_their_markers_cost_no_settle_window(run_dir: Path) -> None:
    clock = HandClock()
    async with run_daemon(run_config(run_dir, is_direct=True, settle_s=5.0), clock=clock) as daemon:
        ranks = [SimRank(port=daemon.port, token=TOKEN, rank=rank, world_size=2) for rank in range(2)]
        for rank in ranks:
            await rank.join()
        for rank in ranks:
            await rank.send_steps(10)
            await rank.finish()
        await clock.advance(0.1)
        assert daemon.session.core.phase == "settling"
        for rank in ranks:
            await rank.close()
        await until(lambda: all(slot.connection is None for slot in daemon.session.roster), "both have hung up")
        assert await daemon.sealed(clock, limit_s=10.0) < 1.0


async def test_the_manifest_says_running_while_training_runs(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2)
        await node.join()
        await node.start_training()

        def has_started() -> bool:
            is_written = (daemon.run_dir / "manifest.json").exists()
            return is_written and daemon.manifest().lifecycle.training_started_at is not None

        await until(has_started, "the manifest says that training has started")
        manifest = daemon.manifest()
        await node.close()

    assert (manifest.status, manifest.telemetry_status, manifest.artifacts.get("final_summary_json")) == (
        "running",
        "pending",
        None,
    )
    assert manifest.lease is not None
    assert stat.S_IMODE((run_dir / "manifest.json").stat().st_mode) == 0o600


async def test_pings_are_answered_by_the_running_loop(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        pong = await rank.ping(offset_ns=-12, bound_ns=34)
        slot = next(iter(daemon.session.roster))
        await rank.close()

    assert pong.daemon_ns > pong.sent_ns - 10**9
    assert (slot.clock_offset_ns, slot.clock_bound_ns) == (-12, 34)


def database_files(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.glob("*sqlite*"))
