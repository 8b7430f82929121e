"""From torchrun's end to the command's exit code: what this node knows is gathered, handed in, and said.

Nothing here may change training's exit code: what goes wrong is said as a problem, and the next step is taken.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import msgspec

from traceml_client.protocol import messages
from traceml_client.protocol.node import NODE_SCHEMA_VERSION, NodeReport
from traceml_launch.aggregator.closing import Closing, close_run
from traceml_launch.aggregator.handing_in import tail_messages
from traceml_launch.folder.placement import Place
from traceml_launch.node import Node
from traceml_launch.outcome import TrainingEnd, exit_code_of, final_lines
from traceml_launch.ranks import node_report
from traceml_launch.ranks.torchrun_table import parse_table
from traceml_launch.system import processes
from traceml_launch.system.leftovers import Leftovers, Reaping

DRAIN_QUIET_S: Final = 0.2
DRAIN_LIMIT_S: Final = 1.0
"""For pipes that a detached process holds open: what it writes later is still read while it lingers."""


async def end(node: Node, *, late_pids: set[int]) -> int:
    """Training is over on this node; return the command's exit code."""
    ended_ns, ended_s = time.time_ns(), asyncio.get_running_loop().time()
    place = await node.placement.final()
    _tell_end(node, _report(node, place, ended_ns), is_final=False)
    await node.training.end_workers()
    reaping = _begin_reaping(node, ended_s, late_pids)
    try:
        if node.streams is not None:
            await node.streams.drain(quiet_s=DRAIN_QUIET_S, limit_s=DRAIN_LIMIT_S)
        node.workers.settle_exits()
        await node.handing_in.finish()
        report = _report(node, place, ended_ns)
        _write_report(node, place, report)
        _send_files(node, place)
        _tell_end(node, report, is_final=True)
        training = _training_end(node)
        closing = await close_run(node, training, report, ended_s=ended_s)
    finally:
        left = await reaping.finish()
    _close_streams(node)
    _write_report(node, place, msgspec.structs.replace(report, processes_left=left))
    _say_end(node, training, closing)
    return exit_code_of(training)


async def never_started(node: Node, *, exit_code: int | None = None) -> int:
    """torchrun was not started: nothing has to be gathered; return the command's exit code."""
    training = _training_end(node)
    place = await node.placement.final()
    report = _report(node, place, time.time_ns())
    _write_report(node, place, report)
    _tell_end(node, report, is_final=True)
    closing = await close_run(node, training, report, ended_s=asyncio.get_running_loop().time())
    _close_streams(node)
    _say_end(node, training, closing)
    return exit_code_of(training) if exit_code is None else exit_code


def exit_code(node: Node) -> int:
    """The command's exit code, from training alone."""
    return exit_code_of(_training_end(node))


def _report(node: Node, place: Place, ended_ns: int) -> NodeReport:
    """What this node knows of its end by now."""
    torchrun, table = node.training.torchrun, parse_table(node.torchrun_stderr.content())
    training = _training_end(node)
    return NodeReport(
        schema_version=NODE_SCHEMA_VERSION,
        run_name=place.run_name,
        run_id=place.run_id,
        node_index=place.node_index,
        host=node.me.holder.host,
        launcher_pid=node.me.holder.pid,
        started_ns=node.me.started_ns,
        ended_ns=ended_ns,
        torchrun_pid=torchrun.pid if torchrun is not None else None,
        exit_code=training.exit_code,
        signal=training.signal,
        interrupted_by=training.interrupted_by,
        ranks=node_report.rank_ends(node.workers, table),
        kernel=node.kernel.since_start(),
        torchrun_root_cause_rank=table.root_cause_rank,
        torchrun_got=table.signal,
        script=Path(node.config.target.name).name,
    )


def _training_end(node: Node) -> TrainingEnd:
    exit_code, signal_name = node_report.split_return_code(node.training.return_code)
    return TrainingEnd(exit_code=exit_code, signal=signal_name, interrupted_by=node.training.interrupted_by)


def _tell_end(node: Node, report: NodeReport, *, is_final: bool) -> None:
    node.telemetry.link.send(messages.NodeEnded(report=node_report.fitted(report), is_final=is_final))


def _send_files(node: Node, place: Place) -> None:
    """Where the daemon does not see this node's folder."""
    if not place.is_shared:
        for message in tail_messages(node.workers, place.node_index):
            node.telemetry.link.send(message)


def _write_report(node: Node, place: Place, report: NodeReport) -> None:
    try:
        node_report.write(report, place.run_dir)
    except OSError as error:
        node.console.problem(f"{place.node_dir}/node.json cannot be written: {error.strerror}")


def _begin_reaping(node: Node, ended_s: float, late_pids: set[int]) -> Reaping:
    """End what is left of the run; its workers were seen to before. Workers may still join `late_pids`."""
    own = processes.read_stat(node.me.holder.pid)
    tracker = node.training.tracker
    late_pids |= {own.session if own is not None else 0, *node.workers.pids()}
    late_pids |= tracker.sessions if tracker is not None else set()
    leftovers = Leftovers(
        attached_sessions=late_pids,
        linger_until_s=ended_s + node.config.linger_s,
        command_of=processes.command_of,
    )
    # Orphans without the mark are ours only if nobody else's children could have become ours.
    adopter_pid = 0 if node.me.children_before else node.me.holder.pid
    nonce, spared = node.assignment.nonce, node.spared
    return Reaping(
        leftovers, lambda: processes.of_run(nonce, adopter_pid=adopter_pid, spared=spared), hurried=node.hurried
    )


def _close_streams(node: Node) -> None:
    """Before our own last lines: nothing of training's may come after them."""
    if node.streams is None:
        return
    node.streams.close()
    for problem in node.streams.problems():
        node.console.problem(f"{problem}; training was not held up")
    for name, terminal in node.terminals.items():
        if terminal.num_dropped_bytes:
            node.console.problem(
                f"the terminal did not take {terminal.num_dropped_bytes} bytes of training's {name}; see the files"
            )


def _say_end(node: Node, training: TrainingEnd, closing: Closing) -> None:
    streams = node.streams
    node.console.finish(
        final_lines(
            training,
            verdict_lines=closing.verdict_lines,
            stderr_path=streams.merged_path("stderr") if streams is not None else None,
            stdout_path=streams.merged_path("stdout") if streams is not None else None,
            telemetry=closing.telemetry,
            is_quiet=node.config.is_quiet,
        )
    )
