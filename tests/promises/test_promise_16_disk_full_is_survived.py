"""Promise 16: a volume that fills up or goes away costs telemetry, with the reason, and nothing of what was stored.

Streams on a full volume are in tests/launch/test_blocked_outputs.py and tests/e2e/test_streams.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.harness.daemon_process import DaemonProcess, launch_order, serve_process, supervised_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.volumes import small_volume
from tests.promises.steps import count_steps
from traceml_client.protocol.messages import RunFinalized

TOKEN = "a secret"


async def begin(daemon: DaemonProcess) -> tuple[SimNode, SimRank]:
    """One rank with 1,000 steps stored."""
    node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
    await node.join()
    rank = await node.start_rank(SimRank(port=daemon.port))
    await rank.join()
    await rank.send_steps(1000)
    await rank.wait_acked()
    return node, rank


async def end(daemon: DaemonProcess, node: SimNode, rank: SimRank) -> RunFinalized:
    """30,000 more steps, and an orderly end."""
    for _ in range(10):
        await rank.send_steps(3000)
        await rank.wait_acked()
    await rank.finish()
    await rank.close()
    await node.end(node.report(rank_end(rank)))
    finalized = await node.wait_finalized()
    assert await daemon.exit_code() == 0
    await node.close()
    return finalized


async def test_a_volume_that_fills_up_keeps_what_it_has_and_takes_the_report(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", size_kib=3000) as volume:
        run_dir = volume.path / "test-run"
        async with supervised_daemon(launch_order(run_dir, nproc_per_node=1)) as daemon:
            node, rank = await begin(daemon)
            volume.fill()
            finalized = await end(daemon, node, rank)
        manifest = daemon.manifest()
        records = manifest.telemetry.records
        assert (manifest.status, manifest.telemetry_status) == ("completed", "degraded")
        assert manifest.telemetry_reason == finalized.telemetry_reason == "storage_full"
        assert 1000 <= records.stored < records.stored + records.dropped == 31_000
        assert count_steps(run_dir / "telemetry.sqlite") == records.stored
        assert "dropped" in (run_dir / "final_summary.txt").read_text()
        assert not (run_dir / "aggregator" / "reserve").exists()


async def test_a_volume_that_goes_away_is_no_end_of_the_daemon(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", size_kib=8000) as volume:
        async with supervised_daemon(launch_order(volume.path / "test-run", nproc_per_node=1)) as daemon:
            node, rank = await begin(daemon)
            volume.take_away()
            finalized = await end(daemon, node, rank)
        assert (finalized.telemetry_status, finalized.telemetry_reason) == ("failed", "finalization_error")


async def test_a_run_folder_that_is_removed_is_no_end_of_the_daemon(tmp_path: Path) -> None:
    run_dir = tmp_path / "test-run"
    async with supervised_daemon(launch_order(run_dir, nproc_per_node=1)) as daemon:
        node, rank = await begin(daemon)
        shutil.rmtree(run_dir)
        finalized = await end(daemon, node, rank)
    assert finalized.telemetry_status == "failed"


async def test_a_volume_that_is_full_or_read_only_at_the_start_is_one_line(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", size_kib=1000) as volume:
        (volume.path / "test-run").mkdir()
        volume.fill()
        async with supervised_daemon(launch_order(volume.path / "test-run")) as daemon:
            assert await daemon.exit_code() == 1
        assert "telemetry.sqlite: database or disk is full" in daemon.ready["error"]
        volume.make_read_only()
        async with serve_process(volume.path / "logs") as serving:
            assert await serving.exit_code() == 2
            assert serving.process.stderr is not None
            (line,) = serving.process.stderr.read().decode().splitlines()
        assert "Read-only file system" in line
