"""Promise 18: nothing in the daemon blocks its loop: every test of it runs under a watch, and the lag is measured.

The watch is the fixture `_nothing_blocks` of tests/daemon/conftest.py, for all tests there and here.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from blockbuster import BlockingError

from tests.harness.daemon_process import serve_process
from tests.harness.sim_rank import SimRank
from tests.harness.torchrun import clean_environment
from traceml_daemon.run.run_files import write_json

TOKEN = "a secret"
STEPS_PER_S = 100_000
NUM_RANKS = 8
P99_S = 0.050


async def test_the_watch_sees_what_blocks(tmp_path: Path) -> None:
    with pytest.raises(BlockingError):
        write_json(tmp_path / "file.json", {})


@pytest.mark.parametrize(
    ("steps_per_s", "seconds", "p99_s"),
    [(20_000, 2, 2.0), pytest.param(STEPS_PER_S, 20, P99_S, marks=[pytest.mark.long, pytest.mark.timeout(120)])],
)
async def test_pings_are_answered_at_once_under_load(
    tmp_path: Path, steps_per_s: int, seconds: int, p99_s: float
) -> None:
    """A ping's whole way there and back is more than the lag of the daemon's loop."""
    options = ("--aggregator-port=0", f"--nproc-per-node={NUM_RANKS + 1}", "--run-name=r")
    async with serve_process(tmp_path / "logs", *options, TRACEML_TOKEN=TOKEN) as daemon:
        rank = SimRank(port=daemon.port, rank=NUM_RANKS, world_size=NUM_RANKS + 1, token=TOKEN)
        await rank.join()
        loading = start_load(daemon.port, steps_per_s, seconds)
        trips = []
        while loading.poll() is None:
            started_s = time.perf_counter()
            await rank.ping()
            trips.append(time.perf_counter() - started_s)
            await asyncio.sleep(0.01)
        stored = json.loads(loading.communicate()[0])["stored"]
        await rank.finish()
        await rank.close()
    trips.sort()
    p50_s, measured_s = trips[len(trips) // 2], trips[len(trips) * 99 // 100]
    print(f"{stored / seconds:.0f} steps/s stored, ping p50 {p50_s * 1000:.2f} ms, p99 {measured_s * 1000:.2f} ms")
    assert stored > (0.9 * steps_per_s * seconds if p99_s == P99_S else 0)
    assert measured_s < p99_s


def start_load(port: int, steps_per_s: int, seconds: int) -> subprocess.Popen[bytes]:
    words = [port, NUM_RANKS, steps_per_s, seconds]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.harness.steady_load", *map(str, words)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=clean_environment(TRACEML_TOKEN=TOKEN),
    )
