"""What strangers can hold of a daemon: time, connections, bytes, and none of it at a member's cost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.daemon.living_run import TOKEN, living_run, refusal
from tests.harness.clock import HandClock
from tests.harness.daemon import run_config, run_daemon
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from tests.harness.wire import Wire
from traceml_client.protocol import messages
from traceml_client.protocol.frames import MAX_FRAME_BYTES
from traceml_daemon.peers.arrivals import Allowance, Arrivals
from traceml_daemon.peers.half_frames import MAX_AGE_S


async def test_a_silent_stranger_has_five_seconds(run_dir: Path) -> None:
    clock = HandClock()
    async with run_daemon(run_config(run_dir), clock=clock) as daemon:
        wire = await Wire.connect(daemon.port)
        await clock.advance(4.9)
        assert not await wire.is_closed_by_daemon(within_s=0.05)
        await clock.advance(0.2)
        assert await wire.is_closed_by_daemon()
        await wire.close()

    assert daemon.rejections.by_peer() == {"127.0.0.1": {"handshake_timeout": 1}}
    assert daemon.rejections.num_frames == 0


async def test_more_connections_than_are_allowed_are_turned_away(run_dir: Path) -> None:
    config = run_config(run_dir, nproc_per_node=5, is_direct=True)
    async with run_daemon(config, max_connections=5) as daemon:
        held = [SimRank(port=daemon.port, token=TOKEN, rank=rank, world_size=5) for rank in range(5)]
        for rank in held:
            await rank.join()
        with pytest.raises(ConnectionRefusedError, match=messages.TOO_MANY):
            await Wire.connect(daemon.port)
        for rank in held:
            await rank.close()
        await until(lambda: daemon.server.num_connections == 0, "all are gone")
        await (await Wire.connect(daemon.port)).close()

    assert daemon.rejections.by_peer() == {"127.0.0.1": {messages.TOO_MANY: 1}}


async def test_a_crowd_of_strangers_does_not_keep_a_member_out(run_dir: Path) -> None:
    config = run_config(run_dir, nproc_per_node=1, is_direct=True)
    async with run_daemon(config, max_connections=50, max_strangers=10) as daemon:
        crowd = [await Wire.connect(daemon.port) for _ in range(30)]
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        crowd += [await Wire.connect(daemon.port) for _ in range(30)]
        await rank.send_steps(10)
        await rank.wait_acked()
        assert daemon.server.num_connections == 10 + 1
        assert daemon.rejections.by_peer() == {"127.0.0.1": {messages.TOO_MANY: 50}}
        assert await crowd[0].is_closed_by_daemon()
        for wire in (*crowd, rank):
            await wire.close()


async def test_a_member_may_send_a_whole_frame_and_a_stranger_may_not(run_dir: Path) -> None:
    async with living_run(run_dir) as (daemon, rank):
        await rank.send_steps(0)
        stranger = await Wire.connect(daemon.port)
        await stranger.send_bytes((5000).to_bytes(4, "little"))
        assert await stranger.is_closed_by_daemon()
        await stranger.close()
        await rank.send_bytes((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
        assert await rank.connected.is_closed_by_daemon()
        await rank.close()
        await rank.rejoin()
        assert daemon.rejections.by_peer() == {"127.0.0.1": {"frame_too_large": 2}}


async def test_strangers_that_stay_cost_a_finished_run_nothing(run_dir: Path) -> None:
    started_s = time.monotonic()
    async with living_run(run_dir) as (daemon, _):
        strangers = [await Wire.connect(daemon.port) for _ in range(50)]
    for stranger in strangers:
        await stranger.close()

    assert time.monotonic() - started_s < 10


async def test_without_a_token_the_run_works_and_says_so(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, token="", is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port)
        await rank.join()
        assert await refusal(SimRank(port=daemon.port)) == messages.SLOT_TAKEN
        await rank.finish()
        await rank.close()
        manifest = await daemon.finalized()

    assert (manifest.telemetry_status, manifest.telemetry.authenticated) == ("complete", False)


async def test_a_frame_that_does_not_end_is_cut_off_and_nothing_is_lost(run_dir: Path) -> None:
    clock = HandClock()
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True), clock=clock) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_half_frame()
        await until(lambda: daemon.server.half_frames.num_bytes > 0, "half a frame is there")
        await clock.advance(MAX_AGE_S - 1)
        assert daemon.rejections.by_peer() == {}
        await clock.advance(6)
        assert await rank.connected.is_closed_by_daemon()
        await until(lambda: daemon.server.half_frames.num_bytes == 0, "its bytes are given back")
        await rank.close()
        assert (await rank.rejoin()).next_seq == (0, 0)
        await rank.send_steps(10)
        await rank.wait_acked()
        await rank.close()

    assert daemon.rejections.by_peer()["127.0.0.1"]["stalled_frame"] == 1


async def test_half_frames_of_all_peers_are_bounded_together(run_dir: Path) -> None:
    config = run_config(run_dir, nproc_per_node=3, is_direct=True)
    async with run_daemon(config) as daemon:
        daemon.server.half_frames.max_bytes = MAX_FRAME_BYTES
        ranks = [SimRank(port=daemon.port, token=TOKEN, rank=rank, world_size=3) for rank in range(3)]
        begun = MAX_FRAME_BYTES.to_bytes(4, "little") + bytes(MAX_FRAME_BYTES // 2 - 4)
        for number, rank in enumerate(ranks, start=1):
            await rank.join()
            await rank.send_bytes(begun)
            most = min(2, number) * len(begun)
            await until(lambda most=most: daemon.server.half_frames.num_bytes == most, "it is read")  # type: ignore[misc]
        assert await ranks[2].connected.is_closed_by_daemon()
        for rank in ranks:
            await rank.hang_up()

    assert daemon.rejections.by_peer()["127.0.0.1"]["too_many_bytes"] == 1


async def test_a_member_that_sends_too_many_frames_is_read_more_slowly(run_dir: Path) -> None:
    config = run_config(run_dir, nproc_per_node=1, is_direct=True)
    async with run_daemon(config, frames_at_once=100) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(2500, per_frame=10)
        await rank.wait_acked()
        await rank.close()

    assert daemon.rejections.by_peer()["127.0.0.1"]["slowed_down"] >= 1
    assert daemon.rejections.num_frames == 0


async def test_an_address_without_members_may_not_come_too_often(run_dir: Path) -> None:
    clock, arrivals = HandClock(), Arrivals(burst=3, per_s=1)
    config = run_config(run_dir, nproc_per_node=1, is_direct=True)
    async with run_daemon(config, clock=clock, arrivals=arrivals) as daemon:
        for _ in range(3):
            await (await Wire.connect(daemon.port)).close()
        with pytest.raises(ConnectionError):
            await Wire.connect(daemon.port)
        await clock.advance(1.5)
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        for _ in range(10):  # from now on a rank lives there
            await (await Wire.connect(daemon.port)).close()
        await rank.close()

    assert daemon.rejections.by_peer() == {"127.0.0.1": {messages.TOO_MANY: 1}}


def test_an_allowance_fills_with_time_and_lends() -> None:
    allowance = Allowance(per_s=10, burst=20, now_s=0)
    assert allowance.take(20, now_s=0) == 0
    assert allowance.take(5, now_s=0) == pytest.approx(0.5)
    assert not allowance.take_if_there(1, now_s=0.5)
    assert allowance.take_if_there(1, now_s=0.7)
    assert allowance.take(20, now_s=1000) == 0
    assert allowance.take(1, now_s=999) == pytest.approx(0.1)  # a clock that steps back gives nothing away


def test_addresses_are_remembered_in_bounded_memory() -> None:
    arrivals = Arrivals(burst=1, per_s=1)
    for number in range(10_000):
        assert arrivals.may_come(f"10.0.{number}", now_s=0)
        arrivals.welcome(f"10.1.{number}")
    assert not arrivals.may_come("10.0.9999", now_s=0)
    assert arrivals.may_come("10.0.0", now_s=0)  # long forgotten
    assert arrivals.num_addresses <= 2 * 4096
