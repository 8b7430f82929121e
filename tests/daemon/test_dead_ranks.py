"""Every way in which a rank can go, at every point of its life, while training runs and after its end.

Rank 0 is always healthy; rank 1 dies. The clock is moved by hand, so the times are exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.clock import HandClock
from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from tests.harness.wire import Wire
from traceml_client.protocol.manifest import Manifest
from traceml_daemon.core.events import Incarnation

SETTLE_S = 1.0
GRACE_S = 5.0
SLACK_S = 0.05
"""What the core lets pass between an event and its conclusion, twice over."""

MOMENTS = ("before join", "while sending", "after last data", "after marker")
WAYS = ("RST", "FIN", "silence", "half frame")
VICTIM = Incarnation(0, 1, 0)


@dataclass
class Scene:
    daemon: RunningDaemon
    clock: HandClock
    node: SimNode
    healthy: SimRank
    victim: SimRank

    def state(self) -> str:
        return next(record.state for record in self.daemon.session.core.ranks if record.incarnation == VICTIM)

    async def end_node(self, *, is_marker_sent: bool) -> None:
        await self.node.end(
            self.node.report(
                rank_end(self.healthy),
                rank_end(self.victim, signal=None if is_marker_sent else "SIGKILL", is_marker_sent=is_marker_sent),
                exit_code=0 if is_marker_sent else 1,
            )
        )
        await until(lambda: 0 in self.daemon.session.node_reports, "the node's end has arrived")


@contextlib.asynccontextmanager
async def scene(run_dir: Path) -> AsyncIterator[Scene]:
    """A launcher, a healthy rank that has finished, and a victim that was started."""
    clock = HandClock()
    config = run_config(run_dir, settle_s=SETTLE_S)
    async with run_daemon(config, clock=clock) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=config.token, local_world_size=2)
        await node.join()
        healthy = await node.start_rank(SimRank(port=daemon.port, rank=0, world_size=2))
        await healthy.join()
        await healthy.send_steps(20)
        await healthy.finish()
        await healthy.close()
        victim = await node.start_rank(SimRank(port=daemon.port, rank=1, world_size=2))
        await until(lambda: len(daemon.session.roster.slots) == 2, "the victim was started")
        try:
            yield Scene(daemon, clock, node, healthy, victim)
        finally:
            await victim.close()
            await node.close()


async def die(scene: Scene, moment: str, way: str) -> int:
    """Bring the victim to its moment and let it go; return how many of its steps are whole."""
    victim = scene.victim
    if moment == "before join":
        victim.wire = await Wire.connect(victim.port)
    else:
        await victim.join()
    if moment in ("while sending", "after last data", "after marker"):
        await victim.send_steps(30)
    if moment in ("after last data", "after marker"):
        await victim.wait_acked()
    if moment == "after marker":
        await victim.finish()
    num_steps = victim.next_seq[0]
    if way == "half frame":
        await victim.send_half_frame()
    await go(scene, way)
    if way != "silence":
        await until(lambda: scene.daemon.server.num_connections == 1, "only the launcher is connected")
    await until(lambda: scene.daemon.session.store.is_idle, "everything is stored")
    return num_steps


async def go(scene: Scene, way: str) -> None:
    if way == "RST":
        await until(lambda: not scene.victim.connected.num_unsent_bytes, "the kernel has everything")
        scene.victim.reset()
    elif way != "silence":
        await scene.victim.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_rank_that_dies_while_training_runs_ends_nothing(run_dir: Path, moment: str, way: str) -> None:
    async with scene(run_dir) as here:
        num_steps = await die(here, moment, way)
        is_noticed = moment != "before join" and way != "silence"
        alive = {"before join": "expected", "after marker": "finished"}.get(moment, "active")
        assert here.state() == ("suspect" if is_noticed and alive == "active" else alive)

        await here.clock.advance(10 * 60)

        assert here.state() == ("lost" if is_noticed and alive == "active" else alive)
        assert here.daemon.session.core.phase == "collecting"
        assert here.daemon.session.roster.slots[VICTIM].last_step == num_steps
        assert here.daemon.rejections.num_frames == (way == "half frame")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_dead_rank_that_its_launcher_vouches_for_costs_no_grace(run_dir: Path, moment: str, way: str) -> None:
    async with scene(run_dir) as here:
        num_steps = await die(here, moment, way)
        has_marker = moment == "after marker"
        await here.end_node(is_marker_sent=has_marker)

        elapsed_s = await here.daemon.sealed(here.clock, limit_s=60)
        manifest = await here.daemon.finalized()

    is_still_connected = way == "silence" and moment != "before join"
    assert elapsed_s <= (SETTLE_S if is_still_connected else 0) + SLACK_S
    assert_verdict(manifest, num_steps=num_steps, why=None if has_marker else "killed by SIGKILL")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_dead_rank_that_nobody_vouches_for_costs_the_grace(run_dir: Path, moment: str, way: str) -> None:
    """Its launcher is lost with it."""
    async with scene(run_dir) as here:
        num_steps = await die(here, moment, way)
        here.node.reset()
        await until(lambda: here.daemon.session.roster.nodes[0].connection is None, "the launcher's loss is noticed")

        elapsed_s = await here.daemon.sealed(here.clock, limit_s=60)
        manifest = await here.daemon.finalized()

    assert GRACE_S <= elapsed_s <= GRACE_S + GRACE_S + SETTLE_S + SLACK_S
    assert (manifest.status, manifest.training.exit_code) == ("failed", None)
    missing = [rank.rank for rank in manifest.telemetry.ranks_missing]
    assert missing == ([] if moment == "after marker" else [1])
    assert manifest.telemetry.records.stored == 20 + num_steps


async def test_a_rank_that_comes_back_within_the_grace_was_never_missing(run_dir: Path) -> None:
    async with scene(run_dir) as here:
        await die(here, "while sending", "RST")
        await here.clock.advance(GRACE_S - 0.5)
        welcome = await here.victim.rejoin()
        await here.victim.send_steps(10)
        await here.victim.finish()
        await here.victim.close()
        await here.end_node(is_marker_sent=True)
        await here.daemon.sealed(here.clock, limit_s=60)
        manifest = await here.daemon.finalized()

    assert welcome.next_seq == (30, 0)
    assert (manifest.telemetry_status, manifest.telemetry.records.stored) == ("complete", 60)


async def test_a_rank_that_talks_on_after_the_end_is_cut_at_the_timeout(run_dir: Path) -> None:
    async with scene(run_dir) as here:
        await here.victim.join()
        await here.node.end(here.node.report(rank_end(here.healthy)), is_final=True)
        await until(lambda: 0 in here.daemon.session.node_reports, "the node's end has arrived")
        while here.daemon.session.core.phase != "sealed" and here.clock.now_s() < 1000 + 60:
            await here.victim.send_steps(1)
            await here.victim.wait_acked()
            await here.clock.advance(0.5)
        elapsed_s = here.clock.now_s() - 1000
        manifest = await here.daemon.finalized()

    assert elapsed_s <= 30
    assert manifest.telemetry_status == "degraded"
    assert [rank.rank for rank in manifest.telemetry.ranks_missing] == [1]


def assert_verdict(manifest: Manifest, *, num_steps: int, why: str | None) -> None:
    telemetry = manifest.telemetry
    if why is None:
        assert (manifest.status, manifest.telemetry_status, telemetry.ranks_missing) == ("completed", "complete", ())
        assert telemetry.ranks_finished == (0, 1)
    else:
        assert (manifest.status, manifest.telemetry_reason) == ("failed", "finalization_warning")
        assert telemetry.ranks_finished == (0,)
        assert [(rank.rank, rank.last_step, rank.why) for rank in telemetry.ranks_missing] == [(1, num_steps, why)]
    assert telemetry.records.stored == 20 + num_steps
    assert telemetry.records.dropped == 0
