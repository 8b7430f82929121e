"""A token that stands in the run folder: nodes that see it prove it, others are let in until all have proven."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.living_run import refusal
from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from traceml_client.protocol import messages
from traceml_client.protocol.launch import TOKEN_FILE

TOKEN = "a secret"
OFFERED = {"nnodes": 2, "nproc_per_node": 1, "is_token_offered": True}


def node(daemon: RunningDaemon, number: int, *, token: str = TOKEN, pid: int = 0) -> SimNode:
    return SimNode(
        port=daemon.port,
        run="run-id-1" if number == 0 else "test-run",
        token=token,
        node_rank=number,
        nnodes=2,
        host=f"host-{number}",
        pid=pid or 100 + number,
        is_owner=number == 0,
    )


async def finish(daemon: RunningDaemon, *nodes: SimNode) -> bool:
    """Let every node train; return whether the run calls itself authenticated."""
    for number, each in enumerate(nodes):
        rank = await each.start_rank(SimRank(port=daemon.port, rank=number, local_rank=0, world_size=2))
        await rank.join()
        await rank.send_steps(10)
        await rank.finish()
        await rank.close()
        await each.end(each.report(rank_end(rank)))
    manifest = await daemon.finalized()
    assert (manifest.status, manifest.telemetry.ranks_finished) == ("completed", (0, 1))
    for each in nodes:
        await each.hang_up()
    return manifest.telemetry.authenticated


async def test_once_all_nodes_have_proven_it_nobody_else_is_let_in(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, **OFFERED)) as daemon:
        (run_dir / TOKEN_FILE).write_text(TOKEN)
        nodes = node(daemon, 0), node(daemon, 1)
        for each in nodes:
            await each.join()
        assert await refusal(node(daemon, 1, token="", pid=7)) == messages.BAD_TOKEN
        assert await refusal(node(daemon, 1, token="guessed", pid=7)) == messages.BAD_TOKEN
        assert await refusal(rank_of(daemon, 1)) == messages.BAD_TOKEN
        assert await finish(daemon, *nodes)

    assert not (run_dir / TOKEN_FILE).exists()


def rank_of(daemon: RunningDaemon, number: int) -> SimRank:
    """A rank of that node which proves nothing."""
    return SimRank(
        port=daemon.port, rank=number, local_rank=0, world_size=2, node_index=number, attempt=0, run="run-id-1"
    )


async def test_a_node_that_cannot_know_it_takes_part_and_the_run_says_so(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, **OFFERED)) as daemon:
        owner, other = node(daemon, 0), node(daemon, 1, token="")
        await owner.join()
        await other.join()
        await until(lambda: not daemon.manifest().telemetry.authenticated, "the manifest says so")
        notice = await owner.receive(messages.Notice)
        assert "node 1 on host-1 is not authenticated" in notice.text
        assert not await finish(daemon, owner, other)


async def test_a_node_that_finds_it_later_is_proven_from_then_on(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, **OFFERED)) as daemon:
        owner, other = node(daemon, 0), node(daemon, 1, token="")
        await owner.join()
        await other.join()
        await other.close()
        other.token = TOKEN
        await other.join()
        assert await finish(daemon, owner, other)


async def test_a_stranger_in_a_nodes_place_gives_way_to_the_node(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, **OFFERED)) as daemon:
        owner, stranger, other = node(daemon, 0), node(daemon, 1, token="", pid=7), node(daemon, 1)
        await owner.join()
        await stranger.join()
        await other.join()
        assert await stranger.connected.is_closed_by_daemon()
        await stranger.hang_up()
        assert await finish(daemon, owner, other)


async def test_a_token_that_the_user_gave_is_asked_of_everybody(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, **{**OFFERED, "is_token_offered": False})) as daemon:
        assert await refusal(node(daemon, 1, token="")) == messages.BAD_TOKEN
