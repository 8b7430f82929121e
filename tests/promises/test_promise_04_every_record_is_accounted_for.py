"""sent = stored + salvaged + counted drops: per rank and attempt in the summary, in all in the manifest.

`complete` is said only of a run in which nothing was dropped and nobody is missing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from traceml_client.protocol.node import RankEnd

TOKEN = "a secret"
NUM_RANKS = 3


def accounted(records: dict[str, int]) -> int:
    return records["stored"] + records["salvaged"] + records["dropped"]


async def live_and_die(choose: random.Random, node: SimNode, rank: SimRank, made: dict[Any, int]) -> RankEnd:
    """One attempt: what it makes is sent, left for its launcher to hand in, or lost, each at random."""
    await node.start_rank(rank)
    await rank.join()
    await rank.send_steps(choose.randint(0, 300))
    await rank.wait_acked()
    num_lost = choose.choice([0, 0, 17])
    is_killed = choose.random() < 0.5
    sent = rank.next_seq[0]
    num_left = choose.randint(1, 40) if is_killed else 0
    made[rank.rank, rank.attempt] = sent + num_lost + num_left
    if is_killed:
        rank.reset()
        await node.see_exit(rank)
        await node.salvage(rank, sent + num_lost, num_left)
        return rank_end(rank, signal="SIGKILL", is_marker_sent=False, num_steps_recorded=sent + num_lost + num_left)
    await rank.finish(num_lost=num_lost)
    await rank.close()
    return rank_end(rank, num_steps_recorded=sent + num_lost)


@pytest.mark.parametrize("seed", range(4))
async def test_per_rank_and_attempt_and_in_all(run_dir: Path, seed: int) -> None:
    choose, made, ends = random.Random(seed), dict[Any, int](), list[RankEnd]()
    async with run_daemon(run_config(run_dir, nproc_per_node=NUM_RANKS)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=NUM_RANKS)
        await node.join()
        for attempt in range(2):
            for number in range(NUM_RANKS):
                rank = SimRank(port=daemon.port, rank=number, world_size=NUM_RANKS, attempt=attempt)
                ends.append(await live_and_die(choose, node, rank, made))
        await node.end(node.report(*ends))
        await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()

    summary = daemon.json("final_summary.json")
    found = {
        (section["rank"], each["slot_attempt"]): accounted(each["records"])
        for section in summary["ranks"]
        for each in section["attempts"]
    }
    totals = manifest.telemetry.records
    assert found == made
    assert totals.stored + totals.salvaged + totals.dropped == sum(made.values())
    is_whole = totals.dropped == 0 and manifest.telemetry.ranks_missing == ()
    assert (manifest.telemetry_status == "complete") is is_whole


@pytest.mark.parametrize(("num_lost", "is_missing"), [(0, False), (1, False), (0, True)])
async def test_complete_is_said_of_whole_runs_only(run_dir: Path, num_lost: int, is_missing: bool) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
        await node.join()
        rank = await node.start_rank(SimRank(port=daemon.port))
        await rank.join()
        await rank.send_steps(10)
        if not is_missing:
            await rank.finish(num_lost=num_lost)
        await rank.close()
        await node.end(node.report(rank_end(rank, is_marker_sent=not is_missing)))
        await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()
    assert manifest.telemetry_status == ("degraded" if num_lost or is_missing else "complete")
    reason = "rows_dropped" if num_lost else "finalization_warning" if is_missing else None
    assert manifest.telemetry_reason == reason
