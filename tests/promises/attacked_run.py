"""One run of fixed data against a daemon of its own process, alone or under attack, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.harness.daemon_process import launch_order, supervised_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.torchrun import clean_environment
from tests.harness.wire import Wire
from traceml_client.protocol import codec

TOKEN = "the secret of this run"
NUM_STEPS = 1000
REPORTS = ("final_summary.json", "final_summary.txt", "manifest.json", "failure_report.json")
_WALL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z|(?<=, )\d+\.\d s\b")
_AXIS = re.compile(r'"times_s": \[[^\]]*\]')
"""Spans of wall time since training started: an attacked run takes longer."""
_VARYING = re.compile(r'"(frames_rejected|updated_at|duration_s|pid|start_ticks)": ?\d+|  frames rejected: \d+\n')


Ending = Literal["finished", "killed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    reports: dict[str, str]
    """Without wall times and refused counters."""
    frames_rejected: int
    finalized_s: float
    """From the end of training to the last file."""
    attacks: dict[str, int]
    """How often each was tried."""
    peak_mib: float
    """The largest resident memory that the daemon ever had, up to the end of training."""
    num_threads: int
    described: bytes
    """Its command line and environment, as everybody on the host may see them."""
    files: dict[str, tuple[int, bytes]]
    """Of the run folder: mode and content."""


async def run(run_dir: Path, *, ending: Ending, scale: str | None = None) -> Outcome:
    """Two ranks of fixed data under one launcher; `scale`: of the attack that goes on all the time."""
    async with supervised_daemon(launch_order(run_dir, token=TOKEN)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2, pid=77, start_ticks=5)
        await node.join()
        await node.start_training()
        ranks = [SimRank(port=daemon.port, rank=rank, world_size=2, pid=1000 + rank) for rank in range(2)]
        async with attack(daemon.port, scale, await recorded_hello(daemon.port, ranks[0])) as first_round:
            for rank in ranks:
                await node.start_rank(rank)
                await rank.join()
            for _ in range(10):
                for rank in ranks:
                    await rank.send_steps(NUM_STEPS // 10)
                    await rank.wait_acked()
            attacks = await first_round()
            process = look_at(daemon.process.pid)
            started_s = time.monotonic()
            await end(node, ranks, ending)
            await node.wait_finalized(within_s=60)
            finalized_s = time.monotonic() - started_s
            await node.close()
            assert await daemon.exit_code() == 0
    return Outcome(
        reports=reports_of(run_dir),
        frames_rejected=daemon.manifest().telemetry.frames_rejected,
        finalized_s=finalized_s,
        attacks=attacks,
        files=files_of(run_dir),
        **process,
    )


async def end(node: SimNode, ranks: list[SimRank], ending: Ending) -> None:
    """Rank 0 always sends its marker; what becomes of rank 1 is the ending."""
    await ranks[0].finish()
    await ranks[0].close()
    if ending == "finished":
        await ranks[1].finish()
        await ranks[1].close()
        await node.end(node.report(*map(rank_end, ranks)))
        return
    signal = "SIGKILL" if ending == "killed" else "SIGTERM"
    if ending == "interrupted":
        await node.interrupt(signal)
    ranks[1].reset()
    await node.see_exit(ranks[1])
    ends = (rank_end(ranks[0]), rank_end(ranks[1], signal=signal, is_marker_sent=False))
    await node.end(node.report(*ends, exit_code=1, interrupted_by=signal if ending == "interrupted" else None))


async def recorded_hello(port: int, rank: SimRank) -> bytes:
    """What a listener on the wire would have: the true hello of a rank on an earlier connection."""
    wire = await Wire.connect(port)
    hello = rank.hello(wire.nonce)
    await wire.close()
    return codec.encode(hello)


@contextlib.asynccontextmanager
async def attack(port: int, scale: str | None, recorded: bytes) -> AsyncIterator[Any]:
    """Attack until the block is left; yields a function that waits for the first round and returns its counts."""

    async def nobody() -> dict[str, int]:
        return {}

    if scale is None:
        yield nobody
        return
    process = start_attacker(port, scale, recorded)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield lambda: asyncio.to_thread(lambda: json.loads(process.stdout.readline()))  # type: ignore[union-attr]
    finally:
        process.stdin.close()
        process.kill()
        await asyncio.to_thread(process.wait)
        process.stdout.close()


def start_attacker(port: int, scale: str, recorded: bytes) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.harness.attacker", str(port), scale, recorded.hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=clean_environment(),
    )


@functools.cache
def outcome(ending: Ending, scale: str | None) -> Outcome:
    """The same run for several tests of one process."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder) / "test-run", ending=ending, scale=scale))


def reports_of(run_dir: Path) -> dict[str, str]:
    texts = {name: (run_dir / name).read_text() for name in REPORTS if (run_dir / name).exists()}
    return {name: _AXIS.sub("", _VARYING.sub("", _WALL.sub("TIME", text))) for name, text in texts.items()}


def files_of(run_dir: Path) -> dict[str, tuple[int, bytes]]:
    found = {str(path.relative_to(run_dir)): path for path in run_dir.rglob("*")}
    return {
        name: (path.stat().st_mode & 0o777, path.read_bytes() if path.is_file() else b"")
        for name, path in found.items()
    }


def look_at(pid: int) -> dict[str, Any]:
    proc = Path(f"/proc/{pid}")
    return {
        "peak_mib": int((proc / "status").read_text().split("VmHWM:")[1].split()[0]) / 1024,
        "num_threads": len(os.listdir(proc / "task")),
        "described": (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes(),
    }
