"""A node's report as the core's event: what became of each of its ranks, in words where no marker came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.node import NodeReport, RankEnd
from traceml_daemon.core import events as ev

_MAX_INTEGER: Final = 1 << 62


def check_report(node_index: int, report: NodeReport) -> None:
    """Refuse a report of another node, or with numbers that no process or clock could have.

    Raises:
        RemoteProtocolError: it is one of these.
    """
    numbers = [report.exit_code or 0, report.started_ns, report.ended_ns or 0]
    for end in report.ranks:
        if end.rank < 0 or end.local_rank < 0 or end.attempt < 0:
            raise RemoteProtocolError("a report of a rank that cannot be")
        numbers += [end.rank, end.local_rank, end.attempt, end.torch_restart_count, end.pid, end.exit_code or 0]
        numbers += [end.started_ns, end.num_steps_recorded]
    if report.node_index != node_index or any(abs(number) >= _MAX_INTEGER for number in numbers):
        raise RemoteProtocolError("a node's report with impossible numbers")


def node_ended(report: NodeReport, *, is_final: bool, places: Mapping[ev.Incarnation, ev.RankPlace]) -> ev.NodeEnded:
    """The event; `places` has every incarnation of the report."""
    return ev.NodeEnded(
        node_index=report.node_index,
        exit_code=report.exit_code,
        signal=report.signal,
        interrupted_by=report.interrupted_by,
        ranks=tuple(_ending(report.node_index, end, places) for end in report.ranks),
        is_final=is_final,
    )


def _ending(node_index: int, end: RankEnd, places: Mapping[ev.Incarnation, ev.RankPlace]) -> ev.RankEnding:
    incarnation = ev.Incarnation(node_index, end.local_rank, end.attempt)
    return ev.RankEnding(
        incarnation=incarnation,
        place=places[incarnation],
        exit_code=end.exit_code,
        signal=end.signal,
        is_marker_sent=end.is_marker_sent,
        why=None if end.is_marker_sent else why_no_marker(end),
    )


def why_no_marker(end: RankEnd) -> str:
    """Why a rank could not say that it finished."""
    if end.signal is not None and end.stopped_by_launcher is not None:
        return f"stopped by its launcher with {end.signal}"
    if end.signal is not None:
        return f"killed by {end.signal}"
    if end.exit_code is not None:
        return f"exit code {end.exit_code} without cleanup"
    if end.died_ns is not None:
        return "its process ended without a marker"
    return "was still alive when its launcher reported the end"
