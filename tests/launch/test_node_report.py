"""What a node reports: exits with their source, and a report that always fits its message."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from traceml_client.protocol import launch, ring
from traceml_client.protocol.columns import SAMPLE_STREAM, STEP_STREAM
from traceml_client.protocol.frames import MAX_FRAME_BYTES
from traceml_client.protocol.handover import HandoverRequest
from traceml_client.protocol.messages import NodeEnded
from traceml_client.protocol.node import NodeReport, RankError
from traceml_client.recorder import Recorder
from traceml_launch.ranks import node_report, recorders
from traceml_launch.ranks.ring_memory import RingMemory
from traceml_launch.ranks.torchrun_table import TorchrunTable
from traceml_launch.ranks.workers import Worker

NO_TABLE = TorchrunTable()


def report_of(*workers: Worker) -> NodeReport:
    ranks = node_report.rank_ends(workers, NO_TABLE)
    return NodeReport(1, "run", "id", 0, "here", 1, 1, 2, None, 1, None, None, ranks=ranks)


@pytest.fixture
def make_worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def make(**changes: Any) -> Worker:
        request = HandoverRequest(
            pid=0, start_ticks=0, rank=3, local_rank=1, world_size=4, local_world_size=2, torch_restart_count=0
        )
        values = {"request": request, "attempt": 0, "rank_dir": tmp_path, "ring": RingMemory(), "pidfd": None}
        values |= {"started_ns": 5, "died_ns": 6, "death_order": 0}
        workers.append(Worker(**{**values, **changes}))
        return workers[-1]

    yield make
    for worker in workers:
        worker.retire()


def recorder_of(worker: Worker) -> Recorder:
    assert worker.ring is not None
    return Recorder(worker.ring.content())


def exit_of(worker: Worker, table: TorchrunTable = NO_TABLE) -> tuple[int | None, str | None, str]:
    (end,) = node_report.rank_ends([worker], table)
    return end.exit_code, end.signal, end.exit_source


def test_the_kernels_word_stands_before_all_others(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(wait_status=9, exit_source="pidfd")
    recorder_of(worker).set_exit_code(4)
    assert exit_of(worker, TorchrunTable(3, {3: 7})) == (None, "SIGKILL", "pidfd")


def test_then_the_ranks_own_then_torchruns(make_worker: Callable[..., Worker]) -> None:
    worker, table = make_worker(), TorchrunTable(3, {3: -6})
    assert exit_of(worker) == (None, None, "unknown")
    assert exit_of(worker, table) == (None, "SIGABRT", "torchrun")
    assert exit_of(worker, TorchrunTable(3, {3: 7})) == (7, None, "torchrun")
    recorder_of(worker).set_exit_code(4)
    assert exit_of(worker, table) == (4, None, "recorder")


def test_a_living_rank_has_no_exit(make_worker: Callable[..., Worker]) -> None:
    assert exit_of(make_worker(died_ns=None, death_order=None), TorchrunTable(3, {3: 7})) == (None, None, "unknown")


@pytest.mark.parametrize(("code", "parts"), [(None, (None, None)), (0, (0, None)), (-9, (None, "SIGKILL"))])
def test_torchruns_own_end(code: int | None, parts: tuple[int | None, str | None]) -> None:
    assert node_report.split_return_code(code) == parts


def test_a_report_of_many_tracebacks_fits_its_message(make_worker: Callable[..., Worker]) -> None:
    report = report_of(make_worker())
    error = RankError(kind="main", type="ValueError", message="m", traceback="x" * 7000, raised_ns=1)
    (end,) = report.ranks
    many = tuple(msgspec.structs.replace(end, attempt=n, started_ns=n, error=error) for n in range(400))
    fitted = node_report.fitted(msgspec.structs.replace(report, ranks=many))
    assert len(msgspec.msgpack.encode(NodeEnded(fitted))) <= MAX_FRAME_BYTES
    assert len(fitted.ranks) == 400
    assert {each.error.type for each in fitted.ranks if each.error is not None} == {"ValueError"}


def test_of_too_many_attempts_the_youngest_are_reported(make_worker: Callable[..., Worker]) -> None:
    report = report_of(make_worker())
    (end,) = report.ranks
    many = tuple(msgspec.structs.replace(end, attempt=n, started_ns=n) for n in range(20_000))
    fitted = node_report.fitted(msgspec.structs.replace(report, ranks=many))
    assert len(msgspec.msgpack.encode(NodeEnded(fitted))) <= MAX_FRAME_BYTES
    assert fitted.ranks[-1].attempt == 19_999
    small = node_report.fitted(report)
    assert small is report


def test_a_kept_recorder_reads_like_the_ring(make_worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker = make_worker()
    recorder = recorder_of(worker)
    for number in range(ring.STEP_CAPACITY + 10):
        recorder.record_step((0, number, 1, 2, 3, 4, 5, 6))
    recorder.record_sample(1, 7, (1, 2, 3, 4, 5, 6))
    assert recorders.keep([worker]) == []
    kept, living = ring.RingReader((tmp_path / launch.RECORDER_FILE).read_bytes()), worker.reader
    assert living is not None
    for stream in (STEP_STREAM, SAMPLE_STREAM):
        assert kept.head(stream) == living.head(stream)
        first = living.first_readable(stream)
        assert kept.read(stream, first, ring.STEP_CAPACITY) == living.read(stream, first, ring.STEP_CAPACITY)


def test_a_full_disk_is_said(make_worker: Callable[..., Worker]) -> None:
    (problem,) = recorders.keep([make_worker(rank_dir=Path("/proc/self"))])
    assert problem.startswith("/proc/self/recorder.bin cannot be written")


def test_a_destroyed_recorder_says_nothing(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker()
    assert worker.ring is not None
    worker.ring.content()[:64] = bytes(64)
    assert worker.reader is None
    assert worker.record.num_steps_recorded == 0
    assert recorders.keep([worker]) == []


def test_it_is_replaced_atomically(tmp_path: Path) -> None:
    (tmp_path / "nodes/node_0").mkdir(parents=True)
    report = report_of()
    node_report.write(report, tmp_path)
    node_report.write(report, tmp_path)
    assert [each.name for each in (tmp_path / "nodes/node_0").iterdir()] == ["node.json"]
    assert subprocess.run(["cat", tmp_path / "nodes/node_0/node.json"], capture_output=True).stdout.endswith(b"}\n")
