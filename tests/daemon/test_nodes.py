"""Launchers: what they vouch for, their loss, their signals, and several of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.clock import HandClock
from tests.harness.daemon import run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from traceml_client.protocol import messages
from traceml_client.protocol.errors import Refused
from traceml_client.protocol.messages import MARKER_STREAM, NUMBER_ME, Ack

TOKEN = "a secret"


def launcher(port: int, node_rank: int = 0, **changes: object) -> SimNode:
    values: dict[str, object] = {
        "port": port, "run": "run-id-1", "token": TOKEN, "node_rank": node_rank, "is_owner": node_rank == 0,
        "nnodes": 2, "pid": 4000 + node_rank, "host": f"host-{node_rank}",
    }  # fmt: skip
    return SimNode(**{**values, **changes})  # type: ignore[arg-type]


async def finished_rank(node: SimNode, rank: int, *, world_size: int = 2) -> SimRank:
    worker = await node.start_rank(SimRank(port=node.port, rank=rank, world_size=world_size, local_rank=0))
    await worker.join()
    await worker.send_steps(10)
    await worker.finish()
    await worker.close()
    return worker


async def test_two_nodes_end_and_both_are_told(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nnodes=2, nproc_per_node=1)) as daemon:
        nodes = [launcher(daemon.port, index) for index in range(2)]
        for node in nodes:
            await node.join()
        workers = [await finished_rank(node, index) for index, node in enumerate(nodes)]
        await nodes[1].end(nodes[1].report(rank_end(workers[1])))
        assert (await nodes[1].receive(Ack)).stream == MARKER_STREAM
        await nodes[0].end(nodes[0].report(rank_end(workers[0])))
        for node in nodes:
            assert (await node.wait_finalized()).telemetry_status == "complete"
            await node.close()
        manifest = daemon.manifest()

    assert manifest.status == "completed"
    assert [(node.node_rank, node.exit_code) for node in manifest.training.nodes] == [(0, 0), (1, 0)]


async def test_a_failure_on_another_node_is_the_runs_failure(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nnodes=2, nproc_per_node=1)) as daemon:
        nodes = [launcher(daemon.port, index) for index in range(2)]
        for node in nodes:
            await node.join()
        workers = [await finished_rank(node, index) for index, node in enumerate(nodes)]
        await nodes[1].end(nodes[1].report(rank_end(workers[1]), exit_code=None, signal="SIGKILL"))
        await nodes[0].end(nodes[0].report(rank_end(workers[0])))
        manifest = await daemon.finalized()
        for node in nodes:
            await node.close()

    assert (manifest.status, manifest.training.exit_code) == ("failed", 0)
    assert manifest.training.nodes[1].signal == "SIGKILL"


async def test_a_node_whose_launcher_is_lost_is_given_up_soon(run_dir: Path) -> None:
    clock = HandClock()
    async with run_daemon(run_config(run_dir, nnodes=2, nproc_per_node=1), clock=clock) as daemon:
        nodes = [launcher(daemon.port, index) for index in range(2)]
        for node in nodes:
            await node.join()
        worker = await finished_rank(nodes[0], 0)
        nodes[1].reset()
        await until(lambda: daemon.session.roster.nodes[1].connection is None, "the loss is noticed")
        await nodes[0].end(nodes[0].report(rank_end(worker), exit_code=1))
        await until(lambda: 0 in daemon.session.node_reports, "the owner's end has arrived")
        elapsed_s = await daemon.sealed(clock, limit_s=60)
        manifest = await daemon.finalized()
        await nodes[0].close()

    assert elapsed_s < 15
    assert manifest.training.nodes[1].why == "node 1's launcher was lost"
    assert [rank.rank for rank in manifest.telemetry.ranks_missing] == [1]


async def test_a_launcher_that_comes_back_in_time_was_never_lost(run_dir: Path) -> None:
    clock = HandClock()
    async with run_daemon(run_config(run_dir, nproc_per_node=1), clock=clock) as daemon:
        node = launcher(daemon.port)
        await node.join()
        worker = await finished_rank(node, 0, world_size=1)
        node.reset()
        await until(lambda: daemon.session.roster.nodes[0].connection is None, "the loss is noticed")
        await clock.advance(4)
        await node.join()
        await clock.advance(60)
        assert daemon.session.core.phase == "collecting"
        await node.end(node.report(rank_end(worker)))
        await until(lambda: 0 in daemon.session.node_reports, "the end has arrived")
        await daemon.sealed(clock, limit_s=10)
        manifest = await daemon.finalized()
        await node.close()

    assert (manifest.status, manifest.telemetry_status) == ("completed", "complete")


async def test_what_is_said_twice_after_a_reconnect_counts_once(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1)) as daemon:
        node = launcher(daemon.port)
        await node.join()
        await node.start_training()
        worker = await finished_rank(node, 0, world_size=1)
        await node.see_exit(worker)
        node.reset()
        await until(lambda: daemon.session.roster.nodes[0].connection is None, "the loss is noticed")
        await node.join()
        await node.start_training()
        await node.start_rank(worker)
        await node.see_exit(worker)
        report = node.report(rank_end(worker))
        await node.end(report, is_final=False)
        await node.end(report)
        manifest = await daemon.finalized()
        await node.close()

    assert (manifest.telemetry_status, manifest.training.attempts) == ("complete", 1)
    assert len(daemon.session.roster.slots) == 1


async def test_a_node_rank_that_is_held_is_refused(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir)) as daemon:
        node = launcher(daemon.port)
        await node.join()
        second = launcher(daemon.port, pid=1, host="elsewhere")
        with pytest.raises(Refused, match=messages.SLOT_TAKEN):
            await second.join()
        await node.close()


async def test_the_daemon_hands_out_node_indices(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nnodes=3, nproc_per_node=1)) as daemon:
        nodes = [launcher(daemon.port, NUMBER_ME, pid=5000 + number) for number in range(3)]
        assert [(await node.join()).node_index for node in nodes] == [0, 1, 2]
        await nodes[1].close()
        assert (await nodes[1].join()).node_index == 1
        for node in nodes:
            await node.close()


async def test_the_first_signal_writes_an_interrupted_manifest_and_a_provisional_summary(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1)) as daemon:
        node = launcher(daemon.port)
        await node.join()
        worker = await node.start_rank(SimRank(port=daemon.port, local_rank=0))
        await worker.join()
        await worker.send_steps(10)
        await worker.wait_acked()
        await node.interrupt("SIGTERM")
        await until((run_dir / "final_summary.json").is_file, "the provisional summary is there")
        await until(lambda: daemon.manifest().status == "interrupted", "the manifest says interrupted")
        provisional, during = daemon.json("final_summary.json"), daemon.manifest()
        await worker.finish()
        await worker.close()
        await node.end(node.report(rank_end(worker), exit_code=1, interrupted_by="SIGTERM"))
        manifest = await daemon.finalized()
        final = daemon.json("final_summary.json")
        await node.close()

    assert provisional["provisional"] is True
    assert (provisional["training"]["status"], provisional["ranks"][0]["attempts"][0]["steps"]) == ("interrupted", 10)
    assert (during.telemetry_status, "final_summary_json" in during.artifacts) == ("pending", False)
    assert not final.get("provisional")
    assert (manifest.status, manifest.telemetry_status) == ("interrupted", "complete")


async def test_without_history_nothing_is_stored_and_the_failure_is_still_reported(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, has_history=False)) as daemon:
        node = launcher(daemon.port)
        await node.join()
        worker = await node.start_rank(SimRank(port=daemon.port, local_rank=0))
        await worker.join()
        await worker.send_steps(100)
        await worker.wait_acked()
        await worker.finish(exit_code=3)
        await worker.close()
        await node.end(node.report(rank_end(worker, exit_code=3), exit_code=1))
        await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()

    assert (manifest.status, manifest.telemetry_status, manifest.telemetry_reason) == (
        "failed",
        "unavailable",
        "history_disabled",
    )
    assert (manifest.telemetry.records.received, manifest.telemetry.records.stored) == (100, 0)
    assert {"failure_report_json"} <= set(manifest.artifacts)
    assert not {"final_summary_json", "telemetry_database"} & set(manifest.artifacts)
