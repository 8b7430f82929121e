"""What this node knows of its end, put together for `node.json` and for the daemon."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from traceml_client.protocol import launch, manifest
from traceml_client.protocol.atomic_files import write_atomically
from traceml_client.protocol.frames import MAX_FRAME_BYTES
from traceml_client.protocol.node import ExitSource, NodeReport, RankEnd, RankError
from traceml_launch.ranks.ring_memory import RankRecord
from traceml_launch.ranks.torchrun_table import TorchrunTable
from traceml_launch.ranks.workers import Worker
from traceml_launch.system import pidfds

MAX_REPORT_BYTES: Final = MAX_FRAME_BYTES - 4096
_BRIEF_LENGTH: Final = 500


def split_return_code(return_code: int | None) -> tuple[int | None, str | None]:
    """A code as `subprocess` gives it, as (exit code, signal name)."""
    if return_code is None or return_code >= 0:
        return return_code, None
    return None, pidfds.signal_name(-return_code)


def rank_ends(workers: Iterable[Worker], table: TorchrunTable) -> tuple[RankEnd, ...]:
    """How each incarnation has ended, as of now."""
    return tuple(_rank_end(worker, table) for worker in workers)


def fitted(report: NodeReport) -> NodeReport:
    """The report as it fits one message: a hundred ranks with tracebacks, or a hundred restarts, are too much.

    Tracebacks go first (they are in the ranks' `error.json` too), then the oldest attempts.
    """
    if _num_bytes(report) <= MAX_REPORT_BYTES:
        return report
    ranks = tuple(
        msgspec.structs.replace(end, error=_brief(end.error), thread_error=_brief(end.thread_error), notes=())
        for end in report.ranks
    )
    ranks = tuple(sorted(ranks, key=lambda end: end.started_ns))
    report = msgspec.structs.replace(report, ranks=ranks)
    while _num_bytes(report) > MAX_REPORT_BYTES and report.ranks:
        report = msgspec.structs.replace(report, ranks=report.ranks[(len(report.ranks) + 9) // 10 :])
    return report


def write(report: NodeReport, run_dir: Path) -> None:
    """Replace this node's `node.json`. Raises OSError."""
    path = run_dir / launch.layout_node_dir(report.node_index) / launch.NODE_FILE
    write_atomically(path, manifest.encode_json(report))


def _num_bytes(report: NodeReport) -> int:
    return len(msgspec.msgpack.encode(report))


def _brief(error: RankError | None) -> RankError | None:
    if error is None:
        return None
    return msgspec.structs.replace(error, message=error.message[:_BRIEF_LENGTH], traceback="")


def _rank_end(worker: Worker, table: TorchrunTable) -> RankEnd:
    record = worker.record
    exit_code, signal_name, source = _exit_of(worker, record, table)
    return RankEnd(
        rank=worker.request.rank,
        local_rank=worker.request.local_rank,
        attempt=worker.attempt,
        torch_restart_count=worker.request.torch_restart_count,
        pid=worker.pid,
        started_ns=worker.started_ns,
        died_ns=worker.died_ns,
        death_order=worker.death_order,
        exit_code=exit_code,
        signal=signal_name,
        exit_source=source,
        is_marker_sent=record.is_marker_sent,
        error=record.error,
        thread_error=record.thread_error,
        step=record.step,
        phase=record.phase,
        notes=record.notes,
        num_steps_recorded=record.num_steps_recorded,
        num_steps_dropped=record.num_steps_dropped,
        stopped_by_launcher=worker.stopped_by_launcher,
    )


def _exit_of(worker: Worker, record: RankRecord, table: TorchrunTable) -> tuple[int | None, str | None, ExitSource]:
    """(exit code, signal, source) from the kernel, else from the rank's own last record, else from torchrun."""
    if worker.died_ns is None:
        return None, None, "unknown"
    if worker.wait_status is not None:
        return (*pidfds.split_status(worker.wait_status), worker.exit_source)
    if record.exit_code is not None:
        return record.exit_code, None, "recorder"
    code = table.exit_codes.get(worker.request.rank)
    if code is None:
        return None, None, "unknown"
    return (code, None, "torchrun") if code >= 0 else (None, pidfds.signal_name(-code), "torchrun")
