"""A run that must come through whatever a test does beside it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from traceml_client.protocol.errors import Refused

TOKEN = "a secret"


@contextlib.asynccontextmanager
async def living_run(run_dir: Path, **changes: object) -> AsyncIterator[tuple[RunningDaemon, SimRank]]:
    """A run with one healthy rank; at the end it must be complete, whatever came in between."""
    async with run_daemon(run_config(run_dir, nproc_per_node=1, **changes)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=1)
        await node.join()
        rank = await node.start_rank(SimRank(port=daemon.port))
        await rank.join()
        await rank.send_steps(10)
        yield daemon, rank
        await rank.send_steps(10)
        await rank.finish()
        await rank.close()
        await node.end(node.report(rank_end(rank)))
        await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()
    assert (manifest.status, manifest.telemetry_status) == ("completed", "complete")
    assert manifest.telemetry.ranks_expected == 1
    assert manifest.telemetry.records.stored == 20
    assert manifest.telemetry.frames_rejected == daemon.rejections.num_frames


async def refusal(rank: SimRank | SimNode) -> str:
    """The reason for which the daemon does not let this peer in."""
    with pytest.raises(Refused) as refused:
        await rank.join()
    assert await rank.connected.is_closed_by_daemon()
    await rank.close()
    return refused.value.reason
