"""Promise 14, the half about frames: what the network cuts and joins comes out as the same messages.

Every cut of two frames, random cuts and single bytes are properties in tests/property/test_framing.py; here a whole run
goes over a wire that passes on a few bytes at a time. Logs are the other half.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.daemon import run_config, run_daemon
from tests.harness.proxy import proxy_to
from tests.harness.sim_rank import SimRank
from tests.promises.steps import count_steps

TOKEN = "a secret"


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
async def test_a_run_over_a_wire_that_chops_is_the_same(run_dir: Path, piece_bytes: int) -> None:
    config = run_config(run_dir, nproc_per_node=1, is_direct=True)
    async with run_daemon(config) as daemon, proxy_to(daemon.port) as (proxy, port):
        proxy.piece_bytes = piece_bytes
        rank = SimRank(port=port, token=TOKEN)
        await rank.join()
        await rank.send_steps(30 * piece_bytes, per_frame=11)
        await rank.finish()
        await rank.close()
        manifest = await daemon.finalized()
    assert manifest.telemetry_status == "complete"
    assert count_steps(run_dir / "telemetry.sqlite") == 30 * piece_bytes
    assert daemon.rejections.by_peer() == {}
