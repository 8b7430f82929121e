"""A run that an earlier daemon left behind: who was in it, told to the session's roster and core.

Launchers are not restored: they connect again and say all they know once more.
"""

from __future__ import annotations

import msgspec

from traceml_client.protocol.errors import StoreError
from traceml_daemon.core import events as ev
from traceml_daemon.peers.roster import Roster
from traceml_daemon.peers.slots import RankSlot
from traceml_daemon.storage.rows import Recovered


def take_up(recovered: Recovered, roster: Roster) -> list[ev.Event]:
    """Fill the roster; return what the core has to hear. Nobody is connected yet.

    Raises:
        StoreError: a row is damaged.
    """
    events: list[ev.Event] = []
    for row in recovered.incarnations:
        try:
            slot = roster.put(RankSlot.from_row(row, recovered.totals(row.id)))
        except msgspec.DecodeError as error:
            raise StoreError(f"the database's row of rank {row.rank} is damaged: {error}") from None
        events += _story(slot)
    return events


def _story(slot: RankSlot) -> list[ev.Event]:
    story: list[ev.Event] = [ev.RankStarted(slot.incarnation, slot.place)]
    if slot.first_at_ns is not None:
        story += [ev.RankJoined(slot.incarnation, slot.place), ev.RankSent(slot.incarnation, slot.last_step)]
    if slot.is_finished:
        story.append(ev.RankFinished(slot.incarnation, slot.exit_code, slot.error is not None, slot.is_complete))
    if slot.first_at_ns is not None:
        story.append(ev.RankDropped(slot.incarnation))
    return story
