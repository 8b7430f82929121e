"""Pipes, ring and attempt number for each worker, given by the launcher's side to the client's real one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.harness.until import until
from tests.launch.launcher import REPOSITORY
from traceml_client.protocol.handover import HandoverGrant, HandoverRequest
from traceml_launch.folder.placement import Place
from traceml_launch.output.streams import NodeStreams
from traceml_launch.output.terminal import TerminalWriter
from traceml_launch.ranks.handover import HandoverServer
from traceml_launch.ranks.workers import Worker, WorkerTable


@dataclass
class Bench:
    """A hand-over server with what it needs, and what it told."""

    run_dir: Path
    problems: list[str] = field(default_factory=list)
    arrived: list[Worker] = field(default_factory=list)
    died: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.null = os.open(os.devnull, os.O_WRONLY)
        terminals = {"stdout": TerminalWriter(self.null), "stderr": TerminalWriter(self.null)}
        self.streams = NodeStreams(terminals)
        self.terminals = terminals
        self.workers = WorkerTable(self.died.append)
        self.server = HandoverServer(
            workers=self.workers,
            streams=self.streams,
            place=self.place,
            grant=self.grant,
            on_problem=self.problems.append,
        )

    async def place(self, request: HandoverRequest) -> Place:
        return Place(run_name="run", run_id="id", run_dir=self.run_dir, node_index=0, is_shared=True)

    def grant(self, worker: Worker, place: Place) -> HandoverGrant:
        self.arrived.append(worker)
        rank_dir = str(worker.rank_dir)
        return HandoverGrant("id", "run", 0, worker.attempt, True, rank_dir, "127.0.0.1", 0, "", -1)

    async def run_worker(self, code: str, *, local_rank: int = 0, rank: int | None = None) -> int | None:
        """Run one worker to its end; its exit code as a shell gives it. The shell is its parent, as torchrun is."""
        rank = local_rank if rank is None else rank
        ranks = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4}
        environ = {**os.environ, **{name: str(value) for name, value in ranks.items()}}
        environ |= {"TRACEML_HANDOVER": self.server.path, "PYTHONPATH": str(REPOSITORY)}
        argv = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "tests.launch.stub_worker", code]
        process = await asyncio.create_subprocess_exec(*argv, env=environ, stderr=asyncio.subprocess.DEVNULL)
        return await process.wait()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    async with bench.server:
        yield bench
    bench.workers.close()
    bench.streams.close()
    for terminal in bench.terminals.values():
        terminal.close(stall_s=5.0)
    os.close(bench.null)


async def test_each_incarnation_of_a_slot_is_an_attempt_with_its_own_folder(bench: Bench, tmp_path: Path) -> None:
    for number in range(3):
        assert await bench.run_worker(f"print('attempt', {number})", local_rank=1, rank=5) == 0
    assert await bench.run_worker("print('other')", local_rank=0, rank=4) == 0
    await bench.streams.drain(quiet_s=5.0, limit_s=5.0)
    assert [(each.request.rank, each.attempt) for each in bench.arrived] == [(5, 0), (5, 1), (5, 2), (4, 0)]
    ranks = tmp_path / "nodes/node_0/ranks"
    for number in range(3):
        assert (ranks / f"rank_5/attempt_{number}/stdout.log").read_bytes() == f"attempt {number}\n".encode()
    assert (ranks / "rank_4/attempt_0/stdout.log").read_bytes() == b"other\n"
    assert all(each.stat().st_mode & 0o77 == 0 for each in ranks.rglob("*"))


async def test_a_process_that_executes_itself_anew_is_the_same_attempt(bench: Bench, tmp_path: Path) -> None:
    step = "print('said', flush=True); recorder.record_step((0, 1, 1, 1, 1, 1, 1, 5))"
    anew = f"{step}; os.execv(sys.executable, [sys.executable, '-m', 'tests.launch.stub_worker', {step!r}])"
    assert await bench.run_worker(anew) == 0
    await until(lambda: len(bench.died) == 1, "the death is noticed")
    await bench.streams.drain(quiet_s=5.0, limit_s=5.0)
    assert [(each.attempt, each.record.num_steps_recorded) for each in bench.workers] == [(0, 2)]
    assert (tmp_path / "nodes/node_0/ranks/rank_0/attempt_0/stdout.log").read_bytes() == b"said\nsaid\n"


async def test_a_rank_that_moves_keeps_its_slots_numbering(bench: Bench) -> None:
    await bench.run_worker("pass", local_rank=0, rank=0)
    await bench.run_worker("pass", local_rank=0, rank=4)
    assert [(each.request.rank, each.attempt) for each in bench.arrived] == [(0, 0), (4, 1)]


async def test_a_death_is_noticed_with_its_status_and_the_ring_is_readable(bench: Bench) -> None:
    code = "[recorder.record_step((0, n, 1, 1, 1, 1, 1, 5)) for n in range(7)]; os.kill(os.getpid(), 9)"
    assert await bench.run_worker(code) == 128 + 9
    await until(lambda: len(bench.died) == 1, "the death is noticed")
    (worker,) = bench.died
    bench.workers.settle_exits()
    assert (worker.wait_status, worker.death_order, worker.record.num_steps_recorded) == (9, 0, 7)


async def test_earlier_attempts_give_their_memory_back_once_they_are_settled(bench: Bench) -> None:
    await bench.run_worker("recorder.record_step((0, 1, 1, 1, 1, 1, 1, 5))")
    await until(lambda: len(bench.died) == 1, "the death is noticed")
    first = bench.died[0]
    assert first.reader is not None
    first.is_settled = True
    await bench.run_worker("pass")
    assert (first.ring, first.reader) == (None, None)
    assert first.record.num_steps_recorded == 1


async def test_the_kernel_says_who_it_is(bench: Bench) -> None:
    lying = "import traceml_client.handover as h; from traceml_client.protocol.handover import HandoverRequest as R; "
    lying += "t = h.take(os.environ['TRACEML_HANDOVER'], R(1, 1, 7, 3, 8, 4, 0))"
    assert await bench.run_worker(lying) == 0
    pids = {each.pid for each in bench.arrived}
    assert len(bench.arrived) == 2
    assert len(pids) == 1
    assert 1 not in pids


async def test_a_stranger_costs_one_line(bench: Bench) -> None:
    for data in (b"\xff" * 100, b"\x04\0\0\0junk", b""):
        reader, writer = await asyncio.open_unix_connection(bench.server.path)
        writer.write(data)
        if not data:
            writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    assert len(bench.problems) == 3
    assert bench.arrived == []
    assert await bench.run_worker("pass") == 0


async def test_who_comes_after_the_end_is_remembered_and_gets_nothing(bench: Bench) -> None:
    bench.server.refuse_more()
    reader, writer = await asyncio.open_unix_connection(bench.server.path)
    await until(lambda: bench.server.late_pids == {os.getpid()}, "it is remembered")
    assert bench.arrived == []
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""


async def test_a_folder_that_cannot_be_made_does_not_keep_a_rank_from_training(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "nodes").touch()
    assert await bench.run_worker("print('trained')") == 0
    assert any("--logs-dir" in problem for problem in bench.problems)
