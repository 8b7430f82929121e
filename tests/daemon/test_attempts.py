"""A job that is restarted: each incarnation is an attempt of its own, and none hides or doubles another's records."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.test_conservation import stored_steps
from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from traceml_client.protocol.node import RankEnd, RankError

TOKEN = "a secret"
ERROR = RankError(kind="main", type="ValueError", message="no data", traceback="", raised_ns=1, step=3, phase="forward")


async def attempt(daemon: RunningDaemon, node: SimNode, rank: int, number: int, *, steps: int, error: bool) -> RankEnd:
    """One incarnation from its start to its end, with a marker; torchrun's own count never changes."""
    sim = SimRank(port=daemon.port, rank=rank, world_size=2, attempt=number)
    await node.start_rank(sim)
    await sim.join()
    await sim.send_steps(steps)
    await sim.wait_acked()
    await sim.finish(exit_code=int(error), error=ERROR if error else None)
    await sim.close()
    await node.see_exit(sim, order=2 * number + rank)
    return rank_end(sim, exit_code=int(error), death_order=2 * number + rank)


async def test_the_last_attempt_speaks_and_the_earlier_ones_are_listed_with_their_ends(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2)
        await node.join()
        ends = [await attempt(daemon, node, rank, 0, steps=30, error=rank == 1) for rank in (0, 1)]
        ends += [await attempt(daemon, node, rank, 1, steps=50, error=False) for rank in (0, 1)]
        await node.end(node.report(*ends))
        await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()

    summary = daemon.json("final_summary.json")
    attempts = {section["rank"]: section["attempts"] for section in summary["ranks"]}
    assert (manifest.status, manifest.telemetry_status, manifest.training.attempts) == ("completed", "complete", 2)
    assert [(each["attempt"], each["steps"], each["torch_restart_count"]) for each in attempts[1]] == [
        (0, 30, 0),
        (1, 50, 0),
    ]
    assert [each["why"] for each in attempts[1]] == ["exit code 1 after ValueError: no data", "finished"]
    assert [each["why"] for each in attempts[0]] == ["finished", "finished"]
    assert summary["step_time"]["window"]["last_step"] == 50
    assert sorted(stored_steps(daemon, 0)) == sorted([*range(1, 31), *range(1, 51)])
    text = (run_dir / "final_summary.txt").read_text()
    assert "rank 1 attempt 0: exit code 1 after ValueError: no data (last step 30)" in text


async def test_the_marker_of_an_earlier_attempt_hides_no_loss(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2)
        await node.join()
        ends = [await attempt(daemon, node, rank, 0, steps=10, error=False) for rank in (0, 1)]
        ends += [await attempt(daemon, node, 0, 1, steps=10, error=False)]
        killed = await node.start_rank(SimRank(port=daemon.port, rank=1, world_size=2, attempt=1))
        await killed.join()
        await killed.send_steps(7)
        await killed.wait_acked()
        killed.reset()
        ends += [rank_end(killed, signal="SIGKILL", is_marker_sent=False)]
        await node.end(node.report(*ends, exit_code=1))
        await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()

    (missing,) = manifest.telemetry.ranks_missing
    assert (manifest.status, manifest.telemetry_status) == ("failed", "degraded")
    assert (missing.rank, missing.why, missing.last_step) == (1, "killed by SIGKILL", 7)
    assert manifest.telemetry.ranks_finished == (0,)
