"""Every record that a rank ever made is stored, salvaged or counted as dropped, per rank and attempt."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from traceml_client.protocol.columns import SAMPLE_STREAM

TOKEN = "a secret"


def stored_steps(daemon: RunningDaemon, rank: int) -> list[int]:
    """The step numbers in the database, each as often as it is there."""
    database = sqlite3.connect(daemon.database)
    try:
        rows = database.execute("SELECT step, step_ns FROM steps WHERE rank = ? ORDER BY step", (rank,)).fetchall()
    finally:
        database.close()
    assert all(step_ns == 1_000_000 + step for step, step_ns in rows), "a step has another one's durations"
    return [step for step, _ in rows]


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_on_the_wire_each_record_is_accounted_for_once(run_dir: Path, seed: int) -> None:
    choose = random.Random(seed)
    async with run_daemon(run_config(run_dir, nproc_per_node=4, is_direct=True)) as daemon:
        ranks = [SimRank(port=daemon.port, token=TOKEN, rank=rank, world_size=4) for rank in range(4)]
        lost = [0, 0, 0, 0]
        for rank in ranks:
            await rank.join()
        for _ in range(40):
            rank = choose.choice(ranks)
            await misbehave(choose, rank, lost)
        for rank in ranks:
            await rank.finish(num_lost=3)
            await rank.close()
        await daemon.finalized()

    for rank in ranks:
        slot = next(slot for slot in daemon.session.roster if slot.place.rank == rank.rank)
        records = slot.records
        assert records.stored + records.dropped == rank.next_seq[0] + 3
        assert records.received == records.stored
        assert records.dropped == lost[rank.rank] + 3
        steps = stored_steps(daemon, rank.rank)
        assert len(steps) == len(set(steps)) == records.stored
    summary = daemon.json("final_summary.json")
    assert [entry["attempts"][0]["steps"] for entry in summary["ranks"]] == [
        rank.next_seq[0] - lost[rank.rank] for rank in ranks
    ]
    assert (summary["telemetry"]["status"], summary["telemetry"]["reason"]) == ("degraded", "rows_dropped")


async def misbehave(choose: random.Random, rank: SimRank, lost: list[int]) -> None:
    """Send on, repeat what was sent, leave a gap, or lose the connection at once and come back."""
    action = choose.choice(("send", "send", "send", "repeat", "gap", "reconnect"))
    if action == "send":
        await rank.send_steps(choose.randrange(1, 60), per_frame=choose.choice((1, 7, 50)))
    elif action == "repeat" and rank.next_seq[0]:
        first = choose.randrange(rank.next_seq[0])
        await rank.send_records(first, choose.randrange(1, 40))
    elif action == "gap":
        gap = choose.randrange(1, 20)
        await rank.send_records(rank.next_seq[0] + gap, 5)
        lost[rank.rank] += gap
    elif action == "reconnect":
        await rank.close()
        await rank.rejoin()


async def test_a_resend_after_a_reset_is_stored_exactly_once(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(300)
        await rank.wait_acked(100)
        rank.reset()
        welcome = await rank.rejoin()
        assert 100 <= welcome.next_seq[0] <= 300
        await rank.send_records(50, 150)
        await rank.send_records(200, 300)
        rank.next_seq[0] = 500
        await rank.wait_acked(500)
        await rank.finish()
        await rank.close()
        manifest = await daemon.finalized()

    assert stored_steps(daemon, 0) == list(range(1, 501))
    assert (manifest.telemetry.records.stored, manifest.telemetry.records.dropped) == (500, 0)
    assert manifest.telemetry_status == "complete"


async def test_what_is_only_a_repeat_is_acknowledged(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(100)
        await rank.wait_acked()
        rank.acked = [0, 0]
        await rank.send_records(20, 30)
        await rank.wait_acked(100)
        await rank.close()


async def test_a_dead_ranks_records_are_salvaged_once_and_told_apart(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=1)
        await node.join()
        rank = await node.start_rank(SimRank(port=daemon.port))
        await rank.join()
        await rank.send_steps(30)
        await rank.wait_acked()
        rank.reset()
        await node.see_exit(rank)
        await node.salvage(rank, 10, 39)
        await node.salvage(rank, 10, 39)
        end = rank_end(rank, signal="SIGKILL", is_marker_sent=False, num_steps_recorded=49)
        await node.end(node.report(end, exit_code=1))
        await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()

    assert stored_steps(daemon, 0) == list(range(1, 50))
    records = manifest.telemetry.records
    assert (records.received, records.stored, records.salvaged, records.dropped) == (49, 30, 19, 0)
    summary = daemon.json("final_summary.json")
    assert summary["ranks"][0]["attempts"][0]["steps"] == 49


async def test_steps_that_died_with_a_rank_are_dropped_and_counted(run_dir: Path) -> None:
    """The launcher knows how many there were, and could not read them."""
    async with run_daemon(run_config(run_dir, nproc_per_node=1)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=1)
        await node.join()
        rank = await node.start_rank(SimRank(port=daemon.port))
        await rank.join()
        await rank.send_steps(30)
        await rank.wait_acked()
        await rank.close()
        end = rank_end(rank, signal="SIGKILL", is_marker_sent=False, num_steps_recorded=49)
        await node.end(node.report(end, exit_code=1))
        manifest = await daemon.finalized()
        await node.close()

    assert (manifest.telemetry.records.stored, manifest.telemetry.records.dropped) == (30, 19)


async def test_samples_are_a_stream_of_their_own(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(10)
        await rank.send_steps(4, stream=SAMPLE_STREAM)
        await rank.wait_acked(stream=SAMPLE_STREAM)
        await rank.send_records(6, 2, stream=SAMPLE_STREAM)
        await rank.finish()
        await rank.close()
        manifest = await daemon.finalized()

    records = manifest.telemetry.records
    assert (records.received, records.stored, records.dropped, records.samples_dropped) == (10, 10, 0, 2)
    assert manifest.telemetry_reason == "rows_dropped"


async def test_a_marker_is_acknowledged_after_the_records_before_it(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(1000)
        await rank.finish()
        assert rank.acked[0] == 1000
        await rank.close()
        await until(daemon.session.finalized.done, "the run is finalized")
