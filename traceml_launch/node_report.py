"""What this node knows of its end, put together for `node.json` and for the daemon."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from traceml_client.protocol import columns, launch, manifest, ring
from traceml_client.protocol.node import NODE_SCHEMA_VERSION, ExitSource, NodeReport, ProcessLeft, RankEnd
from traceml_launch import pidfds
from traceml_launch.torchrun_table import TorchrunTable
from traceml_launch.workers import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Of the node itself."""

    run_name: str
    run_id: str
    node_index: int
    host: str
    launcher_pid: int
    started_ns: int
    ended_ns: int | None = None
    torchrun_pid: int | None = None
    return_code: int | None = None
    """torchrun's, negative for a signal; null while it runs, or if it was never started."""
    interrupted_by: str | None = None
    kernel: dict[str, str] = field(default_factory=dict)
    table: TorchrunTable = field(default_factory=TorchrunTable)


def split_return_code(return_code: int | None) -> tuple[int | None, str | None]:
    """A code as `subprocess` gives it, as (exit code, signal name)."""
    if return_code is None or return_code >= 0:
        return return_code, None
    return None, pidfds.signal_name(-return_code)


def build(facts: NodeFacts, workers: Iterable[Worker]) -> NodeReport:
    """The report as of now."""
    exit_code, signal_name = split_return_code(facts.return_code)
    return NodeReport(
        schema_version=NODE_SCHEMA_VERSION,
        run_name=facts.run_name,
        run_id=facts.run_id,
        node_index=facts.node_index,
        host=facts.host,
        launcher_pid=facts.launcher_pid,
        started_ns=facts.started_ns,
        ended_ns=facts.ended_ns,
        torchrun_pid=facts.torchrun_pid,
        exit_code=exit_code,
        signal=signal_name,
        interrupted_by=facts.interrupted_by,
        ranks=tuple(_rank_end(worker, facts.table) for worker in workers),
        kernel=facts.kernel,
        torchrun_root_cause_rank=facts.table.root_cause_rank,
    )


def with_left(report: NodeReport, left: tuple[ProcessLeft, ...]) -> NodeReport:
    """The same report once everything of the run is gone."""
    return msgspec.structs.replace(report, processes_left=left)


def write(report: NodeReport, run_dir: Path) -> None:
    """Replace this node's `node.json`. Raises OSError."""
    path = run_dir / launch.layout_node_dir(report.node_index) / launch.NODE_FILE
    manifest.write_atomically(path, manifest.encode_json(report))


def _rank_end(worker: Worker, table: TorchrunTable) -> RankEnd:
    reader = worker.ring.reader()
    exit_code, signal_name, source = _exit_of(worker, reader, table)
    step, phase, _ = reader.progress() if reader else (0, None, 0)
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
        is_marker_sent=reader is not None and reader.is_marker_sent(),
        error=reader.error(ring.MAIN_ERROR) if reader else None,
        thread_error=reader.error(ring.THREAD_ERROR) if reader else None,
        step=step,
        phase=phase,
        notes=reader.notes() if reader else (),
        num_steps_recorded=reader.head(columns.STEP_STREAM) if reader else 0,
        num_steps_dropped=reader.num_dropped(columns.STEP_STREAM) if reader else 0,
        stopped_by_launcher=worker.stopped_by_launcher,
    )


def _exit_of(
    worker: Worker, reader: ring.RingReader | None, table: TorchrunTable
) -> tuple[int | None, str | None, ExitSource]:
    """(exit code, signal, source) from the kernel, else from the rank's own last record, else from torchrun."""
    if worker.died_ns is None:
        return None, None, "unknown"
    if worker.wait_status is not None:
        return (*pidfds.split_status(worker.wait_status), worker.exit_source)
    if reader is not None and reader.exit_code() is not None:
        return reader.exit_code(), None, "recorder"
    code = table.exit_codes.get(worker.request.rank)
    if code is None:
        return None, None, "unknown"
    return (code, None, "torchrun") if code >= 0 else (None, pidfds.signal_name(-code), "torchrun")
