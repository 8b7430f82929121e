"""One daemon over many short runs: memory, descriptors and threads stay where the first runs left them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.harness.daemon_process import DaemonProcess, serve_process
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import read_manifest


@dataclass(frozen=True)
class Size:
    """Of the daemon, between two runs."""

    rss_bytes: int
    num_descriptors: int
    num_threads: int


def size_of(pid: int) -> Size:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Size(
        rss_bytes=int(status["VmRSS"].split()[0]) * 1024,
        num_descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        num_threads=int(status["Threads"]),
    )


async def short_run(daemon: DaemonProcess, logs: Path, name: str, *, num_ranks: int, run_s: float) -> None:
    """A direct launch of a few ranks, from its first hello to its report."""
    ranks = [
        SimRank(port=daemon.port, rank=rank, world_size=num_ranks, run=name, pid=1000 + rank)
        for rank in range(num_ranks)
    ]
    for rank in ranks:
        await rank.join()
    for _ in range(10):
        for rank in ranks:
            await rank.send_steps(100)
        await asyncio.sleep(run_s / 10)
    for rank in ranks:
        await rank.finish()
        await rank.close()
    await until(lambda: is_complete(logs / name), f"{name} is complete", within_s=30)


def is_complete(run_dir: Path) -> bool:
    try:
        return read_manifest(run_dir).telemetry_status == "complete"
    except StoreError:
        return False


async def soak(logs: Path, *, num_runs: int, run_s: float, num_ranks: int) -> list[Size]:
    sizes = []
    options = ("--aggregator-port", "0", "--settle-sec", "0.1")
    async with serve_process(logs, *options) as daemon:
        for number in range(num_runs):
            await short_run(daemon, logs, f"run-{number}", num_ranks=num_ranks, run_s=run_s)
            await until(lambda: size_of(daemon.process.pid).num_descriptors < 64, "it lets go")
            sizes.append(size_of(daemon.process.pid))
    return sizes


def check_flat(sizes: list[Size], *, warm_up: int, growth_bytes: int) -> None:
    """The last quarter against what the daemon was after its first runs."""
    first, last = sizes[warm_up : 2 * warm_up], sizes[-len(sizes) // 4 :]
    for name in ("num_descriptors", "num_threads"):
        before, after = ([getattr(size, name) for size in part] for part in (first, last))
        assert max(after) <= max(before) + 1, f"{name}: {before} -> {after}"
    grown = median(size.rss_bytes for size in last) - median(size.rss_bytes for size in first)
    print(f"RSS {first[0].rss_bytes >> 20} -> {last[-1].rss_bytes >> 20} MiB, {last[-1]}")
    assert grown < growth_bytes, f"RSS grew by {grown / 1e6:.1f} MB in {len(sizes)} runs"


async def test_a_dozen_runs_leave_the_daemon_as_it_was(tmp_path: Path) -> None:
    sizes = await soak(tmp_path / "logs", num_runs=12, run_s=0, num_ranks=2)
    check_flat(sizes, warm_up=4, growth_bytes=8 << 20)


@pytest.mark.long
@pytest.mark.timeout(2400)
async def test_two_hundred_runs_in_twenty_minutes_do_not_either(tmp_path: Path) -> None:
    sizes = await soak(tmp_path / "logs", num_runs=200, run_s=5.5, num_ranks=8)
    check_flat(sizes, warm_up=10, growth_bytes=8 << 20)
