"""The end of telemetry: reports are awaited or made offline, the daemon is reaped, the manifest is written last."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceml_client.protocol import messages
from traceml_client.protocol.manifest import TelemetryReason, TelemetryStatus
from traceml_client.protocol.node import NodeReport
from traceml_launch.aggregator import own_daemon
from traceml_launch.aggregator.manifest_writer import telemetry_of
from traceml_launch.aggregator.telemetry import State
from traceml_launch.folder import shared_token
from traceml_launch.node import Node
from traceml_launch.outcome import MAX_FAILURE_LINES, TelemetryEnd, TrainingEnd
from traceml_launch.waiting import unless

OTHER_NODES_S: Final = 10.0
"""The daemon gives other nodes this long after the owner's end; the budget begins after it."""
MARGIN_S: Final = 5.0
"""The daemon keeps the budget by itself; this much later it is not going to."""
PEER_S: Final = 5.0
"""For a daemon elsewhere that has only to answer, or that has not let us in so far."""
HURRIED_S: Final = 3.0
"""After a signal: what the daemon may still need to write what it has."""
SUMMARY_TEXT: Final = "final_summary.txt"
FAILURE_TEXT: Final = "failure_report.txt"

_Telemetry = tuple[TelemetryStatus, TelemetryReason | None]

UNSTATED: Final[dict[State, tuple[TelemetryStatus, TelemetryReason]]] = {
    "finished": ("failed", "finalization_error"),
    "late": ("failed", "finalize_timeout"),
    "died": ("failed", "aggregator_died"),
    "unresponsive": ("failed", "aggregator_unresponsive"),
    "disabled": ("unavailable", "disabled"),
    "unreachable": ("unavailable", "aggregator_unreachable"),
    "starting": ("unavailable", "aggregator_unreachable"),
    "serving": ("unavailable", "aggregator_unreachable"),
}
"""What the launcher says of telemetry where its daemon ended so and could not say it itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    telemetry: TelemetryEnd | None = None
    """Null on nodes that do not own the run."""
    verdict_lines: tuple[str, ...] = ()


async def close_run(node: Node, training: TrainingEnd, report: NodeReport, *, ended_s: float) -> Closing:
    """This node has ended (`ended_s`, on the loop's clock) and has said so."""
    if not node.assignment.is_owner:
        if node.telemetry.link.is_welcome:
            await unless(node.telemetry.link.node_end_taken.wait(), timeout_s=_left(node, PEER_S))
        return Closing()
    final = await _await_reports(node, ended_s)
    if node.assignment.folder is None or node.manifest is None:
        return _attached(final)
    await node.telemetry.end_own(is_finalized=final is not None)
    run_dir = node.assignment.folder.run_dir
    shared_token.remove(run_dir)
    stated = await _stated(node, final, run_dir, ended_s)
    node.manifest.finish(training, report, aggregator_exit_code=node.telemetry.exit_code, telemetry=stated)
    status, reason = stated or telemetry_of(run_dir) or ("failed", "finalization_error")
    summary = run_dir / SUMMARY_TEXT
    return Closing(
        telemetry=TelemetryEnd(status=status, reason=reason, report=summary if summary.exists() else None),
        verdict_lines=final.verdict_lines if final is not None else _offline_failure_lines(run_dir),
    )


async def _await_reports(node: Node, ended_s: float) -> messages.RunFinalized | None:
    """Wait for them within the budget; less after a signal, and within what `--grace-sec` leaves.

    Somebody else's daemon that does not answer is given up sooner: whoever starts it again has it write the reports.
    """
    if not node.telemetry.is_alive and node.telemetry.state != "finished":
        return None
    is_stranger = node.assignment.folder is None and not node.telemetry.link.is_welcome
    until_s = ended_s + (PEER_S if is_stranger else _budget_s(node))
    left_s = _left(node, until_s - asyncio.get_running_loop().time())
    gone = (node.telemetry.link.unresponsive,) if node.assignment.folder is None else ()
    final = await unless(node.telemetry.finalized(timeout_s=left_s), node.hurried, *gone)
    if final is None and node.hurried.is_set():
        final = await node.telemetry.finalized(timeout_s=min(left_s, HURRIED_S))
    return final


async def _stated(node: Node, final: messages.RunFinalized | None, run_dir: Path, ended_s: float) -> _Telemetry | None:
    """What the launcher has to say of telemetry in the daemon's place; null where the daemon said it itself."""
    state = node.telemetry.state
    if final is not None or state == "finished":
        return None if telemetry_of(run_dir) is not None else UNSTATED["finished"]
    if state in ("died", "unresponsive"):
        if await _report_offline(node, run_dir, ended_s):
            return None
        if not node.config.has_history:
            return "unavailable", "history_disabled"
    return UNSTATED[state]


async def _report_offline(node: Node, run_dir: Path, ended_s: float) -> bool:
    """Whether the reports were made without the daemon, and the manifest says so."""
    node.handing_in.keep_unstored()
    if node.manifest is not None:
        node.manifest.let_go()
    left_s = _left(node, ended_s + node.config.finalize_timeout_s - asyncio.get_running_loop().time())
    is_made = await own_daemon.finalize_offline(
        run_dir,
        run_id=node.assignment.nonce,
        reason=UNSTATED[node.telemetry.state][1],
        timeout_s=left_s,
        spared=node.spared,
    )
    return is_made and telemetry_of(run_dir) is not None


def _offline_failure_lines(run_dir: Path) -> tuple[str, ...]:
    """What a daemon would have told us: the report's text begins with it, and its details begin at the family."""
    try:
        lines = (run_dir / FAILURE_TEXT).read_text(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(itertools.takewhile(lambda line: not line.startswith("Family:"), lines))[:MAX_FAILURE_LINES]


def _attached(final: messages.RunFinalized | None) -> Closing:
    """Somebody else's daemon: it alone writes of the run."""
    if final is None:
        return Closing(telemetry=TelemetryEnd(status="unavailable", reason="aggregator_unreachable"))
    status: TelemetryStatus = final.telemetry_status  # type: ignore[assignment]
    reason: TelemetryReason | None = final.telemetry_reason  # type: ignore[assignment]
    return Closing(telemetry=TelemetryEnd(status=status, reason=reason), verdict_lines=final.verdict_lines)


def _budget_s(node: Node) -> float:
    others_s = OTHER_NODES_S if node.config.is_multi_node else 0.0
    return others_s + node.config.finalize_timeout_s + MARGIN_S


def _left(node: Node, wanted_s: float) -> float:
    """As much of it as a deadline from outside leaves."""
    end_by_s = node.training.plan.end_by_s()
    if end_by_s is not None:
        wanted_s = min(wanted_s, end_by_s - asyncio.get_running_loop().time())
    return max(0.0, wanted_s)
