"""Promise 12: a stopped rank and a cut network cost nothing once they are back; a death is known at once.

How a rank resumes on one connection is in tests/client/test_sender.py, what a launcher says of deaths in tests/launch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.clock import HandClock
from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.proxy import Proxy, proxy_to
from tests.harness.real_rank import RealRank, real_rank
from tests.harness.sim_rank import SimRank
from tests.harness.until import until

TOKEN = "a secret"
STOPPED_S = 20.0
KNOWN_WITHIN_S = 1.0


def num_received(daemon: RunningDaemon) -> int:
    return sum(slot.records.received for slot in daemon.session.roster)


def states(daemon: RunningDaemon) -> list[str]:
    return [rank.state for rank in daemon.session.core.ranks]


async def check_complete(daemon: RunningDaemon, num_steps: int) -> None:
    manifest = await daemon.finalized()
    assert (manifest.status, manifest.telemetry_status) == ("completed", "complete")
    assert (manifest.telemetry.records.stored, manifest.telemetry.records.dropped) == (num_steps, 0)


async def test_an_hour_of_silence_is_no_verdict(run_dir: Path) -> None:
    clock = HandClock()
    config = run_config(run_dir, nproc_per_node=1, is_direct=True)
    async with run_daemon(config, clock=clock) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(50)
        await rank.wait_acked()
        await clock.advance(3600)
        assert daemon.session.core.phase == "collecting"
        assert states(daemon) == ["active"]
        await rank.send_steps(50)
        await rank.finish()
        await rank.close()
        await daemon.sealed(clock, limit_s=10)
        await check_complete(daemon, 100)


async def stop_for(rank: RealRank, stopped_s: float) -> None:
    os.kill(rank.process.pid, signal.SIGSTOP)
    await asyncio.sleep(stopped_s)
    os.kill(rank.process.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "stopped_s", [1.0, pytest.param(STOPPED_S, marks=[pytest.mark.long, pytest.mark.timeout(120)])]
)
async def test_a_stopped_rank_goes_on_as_if_nothing_had_been(run_dir: Path, stopped_s: float) -> None:
    config = run_config(run_dir, nproc_per_node=1, is_direct=True)
    async with run_daemon(config) as daemon, real_rank(daemon.port, TRACEML_TOKEN=TOKEN) as rank:
        await rank.train(100)
        await until(lambda: num_received(daemon) > 0, "records arrive")
        await stop_for(rank, stopped_s)
        assert daemon.session.core.phase == "collecting"
        await rank.train(100)
        assert await rank.end() == ""
        await check_complete(daemon, 200)
    assert daemon.rejections.by_peer() == {}


@pytest.mark.parametrize("break_wire", [Proxy.cut, Proxy.still], ids=["cut", "stilled"])
async def test_a_network_that_comes_back_has_lost_nothing(run_dir: Path, break_wire: Callable[[Proxy], None]) -> None:
    config = run_config(run_dir, nproc_per_node=1, is_direct=True)
    async with (
        run_daemon(config) as daemon,
        proxy_to(daemon.port) as (proxy, port),
        real_rank(port, TRACEML_TOKEN=TOKEN) as rank,
    ):
        for _ in range(3):
            await rank.train(1000)
            await until(lambda: num_received(daemon) >= rank.num_steps - 250, "records arrive")
            break_wire(proxy)
            await rank.train(1000)
            await asyncio.sleep(0.3)
            proxy.restore()
        await until(lambda: states(daemon) == ["active"], "it is back")
        await rank.end()
        await check_complete(daemon, 6000)


@pytest.mark.parametrize("within_s", [10.0, pytest.param(KNOWN_WITHIN_S, marks=pytest.mark.long)])
async def test_a_death_is_known_at_once(run_dir: Path, within_s: float) -> None:
    config = run_config(run_dir, nproc_per_node=2, is_direct=True)
    async with run_daemon(config) as daemon, real_rank(daemon.port, TRACEML_TOKEN=TOKEN, WORLD_SIZE="2") as rank:
        await rank.train(100)
        await until(lambda: "active" in states(daemon), "it is here")
        rank.process.kill()
        killed_s = time.monotonic()
        await until(lambda: "suspect" in states(daemon), "its death is known", within_s=within_s)
        print(f"known after {time.monotonic() - killed_s:.3f} s")
