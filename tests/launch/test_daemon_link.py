"""The launcher's connection against the real daemon: proof, clocks, acknowledgements, and a wire that is cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.proxy import proxy_to
from tests.harness.until import until
from traceml_client.protocol import codec, messages
from traceml_client.protocol.errors import Refused, VersionMismatch
from traceml_client.protocol.node import NODE_SCHEMA_VERSION, NodeReport
from traceml_daemon.core.events import Incarnation
from traceml_launch.aggregator.daemon_link import DaemonLink


def hello_of(*, node_rank: int = 0, is_owner: bool = True) -> Callable[[], messages.NodeHello]:
    return lambda: messages.NodeHello(
        version=messages.PROTOCOL_MAJOR,
        run="run-id-1",
        proof=b"",
        node_rank=node_rank,
        nnodes=1,
        local_world_size=2,
        host="here",
        pid=1000 + node_rank,
        start_ticks=1,
        is_owner=is_owner,
    )


def link_to(port: int, *, token: str = "a secret", node_rank: int = 0, is_owner: bool = True) -> DaemonLink:
    link = DaemonLink(
        token=lambda: token,
        hello=hello_of(node_rank=node_rank, is_owner=is_owner),
        on_salvage_ack=lambda ack: None,
        on_notice=lambda text: None,
    )
    link.connect("127.0.0.1", port)
    return link


def rank_started(local_rank: int) -> messages.RankStarted:
    return messages.RankStarted(
        local_rank=local_rank,
        attempt=0,
        rank=local_rank,
        world_size=2,
        local_world_size=2,
        torch_restart_count=0,
        pid=2000 + local_rank,
        start_ticks=1,
        started_ns=time.time_ns(),
    )


def node_ended(node_index: int) -> messages.NodeEnded:
    report = NodeReport(
        schema_version=NODE_SCHEMA_VERSION,
        run_name="test-run",
        run_id="run-id-1",
        node_index=node_index,
        host="here",
        launcher_pid=1,
        started_ns=1,
        ended_ns=2,
        torchrun_pid=3,
        exit_code=0,
        signal=None,
        interrupted_by=None,
    )
    return messages.NodeEnded(report=report)


def knows_rank(daemon: RunningDaemon, local_rank: int) -> Callable[[], bool]:
    return lambda: Incarnation(0, local_rank, 0) in daemon.session.roster.slots


async def test_it_is_welcomed_and_learns_the_clocks_offset(tmp_path: Path) -> None:
    async with run_daemon(run_config(tmp_path)) as daemon:
        link = link_to(daemon.port)
        welcome = await asyncio.wait_for(link.welcome, 10.0)
        assert (welcome.run_id, welcome.node_index, welcome.run_dir) == ("run-id-1", 0, str(tmp_path))
        await until(lambda: link.clock.bound_ns >= 0, "a pong has come")
        assert abs(link.clock.offset_ns) <= link.clock.bound_ns
        await link.close()
        await link.close()


async def test_what_was_said_survives_a_cut_wire(tmp_path: Path) -> None:
    async with run_daemon(run_config(tmp_path)) as daemon, proxy_to(daemon.port) as (proxy, port):
        link = link_to(port)
        link.send(rank_started(0))
        await until(knows_rank(daemon, 0), "said before there was a connection")
        proxy.cut()
        await until(lambda: not link.connected.is_set(), "the cut is noticed")
        link.send(rank_started(1))
        proxy.restore()
        await until(knows_rank(daemon, 1), "said while it was cut")
        assert proxy.num_connections == 2
        await link.close()


async def test_it_waits_for_a_daemon_that_comes_later(tmp_path: Path) -> None:
    async with run_daemon(run_config(tmp_path)) as daemon, proxy_to(daemon.port) as (proxy, port):
        proxy.cut()
        link = link_to(port)
        await asyncio.sleep(0)
        proxy.restore()
        await asyncio.wait_for(link.welcome, 10.0)
        await link.close()


async def test_another_nodes_end_is_acknowledged(tmp_path: Path) -> None:
    async with run_daemon(run_config(tmp_path, nnodes=2)) as daemon:
        owner, peer = link_to(daemon.port), link_to(daemon.port, node_rank=1, is_owner=False)
        await asyncio.wait_for(owner.welcome, 10.0)
        peer.send(node_ended(1))
        await asyncio.wait_for(peer.node_end_taken.wait(), 10.0)
        for link in (owner, peer):
            await link.close()


async def test_the_end_of_the_run_reaches_the_launcher(tmp_path: Path) -> None:
    async with run_daemon(run_config(tmp_path, nproc_per_node=0)) as daemon:
        link = link_to(daemon.port)
        link.send(node_ended(0))
        final = await asyncio.wait_for(link.finalized, 20.0)
        assert final.telemetry_status in ("complete", "degraded")
        await link.close()


async def test_a_wrong_token_is_final(tmp_path: Path) -> None:
    async with run_daemon(run_config(tmp_path)) as daemon:
        link = link_to(daemon.port, token="another")
        with pytest.raises(Refused) as refused:
            await asyncio.wait_for(link.welcome, 10.0)
        assert refused.value.reason == messages.BAD_TOKEN
        assert "another" not in str(refused.value)
        await link.close()


async def test_a_daemon_of_another_version_is_refused() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(codec.encode(messages.Challenge(version=99, nonce=b"n")))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    link = link_to(server.sockets[0].getsockname()[1])
    with pytest.raises(VersionMismatch, match=r"99.*1"):
        await asyncio.wait_for(link.welcome, 10.0)
    await link.close()
    server.close()
    await server.wait_closed()
