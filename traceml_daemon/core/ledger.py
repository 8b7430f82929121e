"""What happened in a run so far: every event is entered here, and nothing is concluded from it.

The order of entries of one instant does not matter, except between events of one peer, which come in its own order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traceml_daemon.core import events as ev
from traceml_daemon.core.nodes import Nodes
from traceml_daemon.core.ranks import Ranks
from traceml_daemon.core.settings import CoreSettings


class Ledger:
    """The ranks, the nodes, and the few facts that belong to the whole run."""

    def __init__(self, settings: CoreSettings, now: float) -> None:
        self.ranks = Ranks(grace_s=settings.reconnect_grace_s)
        self.nodes = Nodes(
            num_expected=settings.nnodes,
            is_resumed=settings.is_resumed,
            loss_grace_s=settings.node_loss_grace_s,
            others_grace_s=settings.other_nodes_grace_s,
        )
        self.started_s = now
        self.heard_s = now
        """The last sign of any rank that is waited for."""
        self.is_drained = True
        """The store has committed all that arrived."""
        self.stopped_s: float | None = None
        self._enter: dict[type, Callable[[Any, float], bool]] = {
            ev.NodeJoined: self._on_node_joined,
            ev.NodeLost: self._on_node_lost,
            ev.NodeEnded: self._on_node_ended,
            ev.RankStarted: self._on_rank_started,
            ev.RankJoined: self._on_rank_joined,
            ev.RankSent: self._on_rank_sent,
            ev.RankFinished: self._on_rank_finished,
            ev.RankDropped: self._on_rank_dropped,
            ev.RankExited: self._on_rank_exited,
            ev.LauncherInterrupted: self._on_launcher_interrupted,
            ev.StopRequested: self._on_stop_requested,
            ev.DataDrained: self._on_data_drained,
        }

    def enter(self, event: ev.Event, now: float) -> bool:
        """Take note of an event; return whether anything could follow from it."""
        return self._enter[type(event)](event, now)

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _on_node_joined(self, event: ev.NodeJoined, now: float) -> bool:
        self.nodes.join(event.node_index, is_owner=event.is_owner, local_world_size=event.local_world_size)
        return True

    def _on_node_lost(self, event: ev.NodeLost, now: float) -> bool:
        self.nodes.lose(event.node_index, now)
        return True

    def _on_node_ended(self, event: ev.NodeEnded, now: float) -> bool:
        self.nodes.end(event, now)
        for ending in event.ranks:
            self.ranks.place(ending.incarnation, ending.place, now).ending = ending
            if ending.is_marker_sent:
                self.ranks.finish(ending.incarnation, now, is_complete=event.is_final)
        if event.is_final:
            self.ranks.close_node(event.node_index, now)
        return True

    def _on_launcher_interrupted(self, event: ev.LauncherInterrupted, now: float) -> bool:
        self.nodes.interrupt(event.node_index, event.signal, event.at_ns)
        return False

    # --- ranks ----------------------------------------------------------------------------------------------------

    def _on_rank_started(self, event: ev.RankStarted, now: float) -> bool:
        self.ranks.place(event.incarnation, event.place, now)
        return True

    def _on_rank_joined(self, event: ev.RankJoined, now: float) -> bool:
        self.ranks.join(event.incarnation, event.place, now)
        self._hear(event.incarnation, now)
        return True

    def _on_rank_sent(self, event: ev.RankSent, now: float) -> bool:
        """The frequent one: nothing follows from records, unless their rank was not active."""
        self.is_drained = False
        is_changed = self.ranks.send(event.incarnation, event.last_step, now)
        self._hear(event.incarnation, now)
        return is_changed

    def _on_rank_finished(self, event: ev.RankFinished, now: float) -> bool:
        has_failed = event.has_error or event.exit_code not in (None, 0)
        is_news = self.ranks.finish(event.incarnation, now, has_failed=has_failed, is_complete=event.is_complete)
        if is_news:
            self._hear(event.incarnation, now)
        return is_news

    def _on_rank_dropped(self, event: ev.RankDropped, now: float) -> bool:
        if self.ranks.drop(event.incarnation, now):
            self._hear(event.incarnation, now)
        return True

    def _on_rank_exited(self, event: ev.RankExited, now: float) -> bool:
        self.ranks.bury(event.incarnation, now)
        return True

    def _hear(self, incarnation: ev.Incarnation, now: float) -> None:
        if self.ranks.is_awaited(incarnation):
            self.heard_s = now

    # --- the daemon itself ----------------------------------------------------------------------------------------

    def _on_stop_requested(self, event: ev.StopRequested, now: float) -> bool:
        self.stopped_s = now if self.stopped_s is None else self.stopped_s
        return True

    def _on_data_drained(self, event: ev.DataDrained, now: float) -> bool:
        self.is_drained = True
        return True
