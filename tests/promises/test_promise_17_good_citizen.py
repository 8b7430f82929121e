"""Promise 17: a service that says when it is ready, shows that its loop lives, stops in time, and stays small."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.harness.daemon_process import DaemonProcess, serve_process
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from tests.harness.wire import Wire
from traceml_client.protocol.manifest import read_manifest

NUM_RUNS = 200
SOAK_S = 1200.0
WARM_RUNS = 20
"""After these, everything that is loaded once is there."""
MAX_GROWTH_MIB = 3.0
COMPARED = 5


class Manager:
    """The other end of the notify socket."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.said: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.setblocking(False)

    def hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self._socket.recv(4096).decode().splitlines()
                self.said.append(dict(line.split("=", 1) for line in lines))

    def count(self, key: str) -> int:
        self.hear()
        return sum(key in message for message in self.said)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


async def test_it_is_ready_once_it_listens_and_alive_while_its_loop_is(tmp_path: Path, manager: Manager) -> None:
    variables = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "150000"}
    options = ("--aggregator-port=0", "--run-name=r", "--finalize-timeout-sec=7")
    async with serve_process(tmp_path / "logs", *options, **variables) as daemon:
        await until(lambda: manager.count("READY") == 1, "it is ready")
        assert manager.said[0]["MAINPID"] == str(daemon.process.pid)
        assert str(daemon.port) in manager.said[0]["STATUS"]
        await (await Wire.connect(daemon.port)).close()
        await until(lambda: (daemon.run_dir / "telemetry.sqlite").exists(), "the database is open")
        await until(lambda: manager.count("WATCHDOG") >= 3, "it shows that it lives")
        os.kill(daemon.process.pid, signal.SIGSTOP)
        await until_silent(manager)
        os.kill(daemon.process.pid, signal.SIGCONT)
        before = manager.count("WATCHDOG")
        await until(lambda: manager.count("WATCHDOG") > before, "it shows that it lives again")
        daemon.process.terminate()
        assert await daemon.exit_code() == 0
    manager.hear()
    (stopping,) = [message for message in manager.said if "STOPPING" in message]
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 7_000_000


@pytest.mark.parametrize("command", ["traceml-daemon", "traceml serve", "python -m traceml_daemon serve"])
@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"])
async def test_it_serves_though_nobody_takes_what_it_says(
    tmp_path: Path, manager: Manager, command: str, redirection: str
) -> None:
    """And no file of the run takes the place of a closed stream."""
    options = ("--aggregator-port=0", "--nproc-per-node=1", "--run-name=r", "--settle-sec=0.1")
    starting = serve_process(
        tmp_path / "logs", *options, command=command.split(), redirection=redirection, NOTIFY_SOCKET=manager.path
    )
    async with starting as daemon:
        await until(lambda: manager.count("READY") == 1, "it is ready")
        rank = SimRank(port=int(manager.said[0]["STATUS"].rpartition(":")[2]))
        await rank.join()
        await rank.send_steps(10)
        await rank.finish()
        await rank.close()
        await until(lambda: read_manifest(tmp_path / "logs" / "r").telemetry_status == "complete", "it is complete")
        daemon.process.terminate()
        assert await daemon.exit_code() == 0


async def until_silent(manager: Manager) -> None:
    """A stopped process says nothing: what is heard was on its way."""
    heard = -1
    while heard != manager.count("WATCHDOG"):
        heard = manager.count("WATCHDOG")
        await asyncio.sleep(0.3)


async def test_a_daemon_that_cannot_serve_never_says_ready(tmp_path: Path, manager: Manager) -> None:
    options = ("--aggregator-port=0", "--aggregator-bind-host=203.0.113.1")
    async with serve_process(tmp_path / "logs", *options, NOTIFY_SOCKET=manager.path) as daemon:
        assert await daemon.exit_code() == 1
    assert manager.count("READY") == 0


async def test_the_watchdog_of_another_process_is_not_ours(tmp_path: Path, manager: Manager) -> None:
    variables = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    async with serve_process(tmp_path / "logs", "--aggregator-port=0", **variables) as daemon:
        await until(lambda: manager.count("READY") == 1, "it is ready")
        await (await Wire.connect(daemon.port)).close()
    assert manager.count("WATCHDOG") == 0


async def test_it_stops_within_its_deadline_though_a_rank_talks_on(tmp_path: Path) -> None:
    options = ("--aggregator-port=0", "--nproc-per-node=1", "--run-name=r", "--finalize-timeout-sec=2")
    async with serve_process(tmp_path / "logs", *options) as daemon:
        rank = SimRank(port=daemon.port)
        await rank.join()
        talking = asyncio.create_task(talk(rank))
        started_s = time.monotonic()
        daemon.process.terminate()
        assert await daemon.exit_code(within_s=30) == 0
        assert time.monotonic() - started_s < 20
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
        await rank.hang_up()
        assert daemon.manifest().status == "interrupted"


async def talk(rank: SimRank) -> None:
    while True:
        await rank.send_steps(1)
        await asyncio.sleep(0.01)


@pytest.mark.long
@pytest.mark.timeout(2 * SOAK_S)
async def test_many_runs_leave_nothing_in_it(tmp_path: Path) -> None:
    async with serve_process(tmp_path / "logs", "--aggregator-port=0", "--settle-sec=0.1") as daemon:
        sizes = [size async for size in soak(daemon, num_runs=NUM_RUNS, duration_s=SOAK_S)]
    print("RSS in MiB, descriptors, threads:", sizes[0], sizes[WARM_RUNS], sizes[len(sizes) // 2], sizes[-1])
    check_flat(sizes)


async def test_a_few_runs_leave_nothing_in_it(tmp_path: Path) -> None:
    async with serve_process(tmp_path / "logs", "--aggregator-port=0", "--settle-sec=0.1") as daemon:
        sizes = [size async for size in soak(daemon, num_runs=WARM_RUNS + 5, duration_s=0.0)]
    check_flat(sizes)


def check_flat(sizes: list[tuple[float, int, int]]) -> None:
    """Resident memory, descriptors and threads after each run."""
    assert max(size[0] for size in sizes) < sizes[WARM_RUNS][0] + MAX_GROWTH_MIB
    first, last = sizes[WARM_RUNS - COMPARED : WARM_RUNS], sizes[-COMPARED:]
    for index in (1, 2):  # a moment's file or thread is no leak, so the smallest of a few runs counts
        assert min(size[index] for size in last) <= min(size[index] for size in first)


async def soak(daemon: DaemonProcess, *, num_runs: int, duration_s: float) -> AsyncIterator[tuple[float, int, int]]:
    """Runs of two ranks, one after the other, evenly over the time; after each, how large the daemon is."""
    started_s = time.monotonic()
    for number in range(num_runs):
        await one_run(daemon, f"run-{number}")
        yield size_of(daemon.process.pid)
        await asyncio.sleep(max(0.0, started_s + duration_s * (number + 1) / num_runs - time.monotonic()))


async def one_run(daemon: DaemonProcess, name: str) -> None:
    ranks = [SimRank(port=daemon.port, run=name, rank=rank, world_size=2) for rank in range(2)]
    for rank in ranks:
        await rank.join()
        await rank.send_steps(2000)
    for rank in ranks:
        await rank.finish()
        await rank.close()
    written = daemon.run_dir / name / "final_summary.json"
    await until(written.exists, f"{name} has its report", within_s=30)
    await until(lambda: num_databases(daemon.process.pid) == 0, f"{name} is closed", within_s=30)


def num_databases(pid: int) -> int:
    """That a process has open."""
    targets = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            targets.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sum("telemetry.sqlite" in target for target in targets)


def size_of(pid: int) -> tuple[float, int, int]:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    mib = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return mib, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
