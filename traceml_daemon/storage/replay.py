"""The verdict on a run whose daemon is gone: what is known is told to a core of its own, and its clock runs out.

The same core decides as in a live daemon, so the two cannot disagree on who is missing and how training ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.node import NodeReport
from traceml_daemon.config import RunConfig
from traceml_daemon.core import events as ev
from traceml_daemon.core.finalize import RunCore
from traceml_daemon.core.settings import CoreSettings
from traceml_daemon.peers.node_ending import check_report, node_ended
from traceml_daemon.peers.roster import Roster


@dataclass(slots=True)
class Replayed:
    core: RunCore
    seal: ev.SealRun | None = None
    warnings: list[str] = field(default_factory=list)


def replay(
    config: RunConfig, roster: Roster, node_reports: Mapping[int, NodeReport], *, owner_node: int | None
) -> Replayed:
    """Decide from the final state of ranks and nodes. The run is sealed in what is returned."""
    settings = CoreSettings(
        nnodes=config.nnodes, nproc_per_node=config.nproc_per_node, is_direct=config.is_direct and not node_reports
    )
    now_s = 0.0
    result = Replayed(RunCore(settings, now_s))
    for event in _events(config, roster, node_reports, owner_node):
        _note(result, result.core.handle(event, now_s))
    while result.seal is None:
        deadline_s = result.core.next_deadline()
        if deadline_s is None:  # nobody was ever heard of
            _note(result, result.core.handle(ev.StopRequested(), now_s))
            continue
        now_s = max(now_s, deadline_s)
        _note(result, result.core.advance(now_s))
    return result


def _events(
    config: RunConfig, roster: Roster, node_reports: Mapping[int, NodeReport], owner_node: int | None
) -> Iterator[ev.Event]:
    nodes = {slot.incarnation.node_index for slot in roster} | set(node_reports)
    if not config.is_direct or node_reports:
        owner = owner_node if owner_node is not None else 0
        for index in sorted(nodes | {owner}):
            yield ev.NodeJoined(index, index == owner, config.nproc_per_node)
    for slot in sorted(roster, key=lambda slot: slot.incarnation):
        yield ev.RankStarted(slot.incarnation, slot.place)
        if slot.first_at_ns is not None:
            yield ev.RankJoined(slot.incarnation, slot.place)
            yield ev.RankSent(slot.incarnation, slot.last_step)
        if slot.is_finished:
            yield ev.RankFinished(slot.incarnation, slot.exit_code, slot.error is not None)
        yield ev.RankDropped(slot.incarnation)
    yield ev.DataDrained()
    for index in sorted(nodes):
        if index in node_reports:
            places = {slot.incarnation: slot.place for slot in roster}
            yield node_ended(node_reports[index], is_final=True, places=places)
        elif not config.is_direct or node_reports:
            yield ev.NodeLost(index)


def _note(result: Replayed, commands: list[ev.Command]) -> None:
    for command in commands:
        if isinstance(command, ev.WarnOnce):
            result.warnings.append(command.text)
        elif isinstance(command, ev.SealRun):
            result.seal = command


def sound_reports(reports: Mapping[int, NodeReport]) -> dict[int, NodeReport]:
    """Those that a live daemon would have taken."""
    sound = {}
    for index, report in reports.items():
        try:
            check_report(index, report)
        except RemoteProtocolError:
            continue
        sound[index] = report
    return sound
