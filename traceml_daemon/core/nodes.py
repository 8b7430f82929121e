"""The nodes of a run, as their launchers told, and when training has ended on all of them.

A launcher is the authority on its node's processes. It says so when training has ended there (first that torchrun is
gone, finally that every record of a dead rank is handed in); if its connection stays lost for the grace, that is its
last word. A node whose launcher never connected is not waited for, unless it may have been connected to an earlier
daemon of this run: then it has the same grace after the owner's end. Once the owner's torchrun has exited, the other
nodes have ten seconds more; then they are given up. An owner that is lost ends the run, whatever the others do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from traceml_daemon.core.events import NodeEnded, NodeVerdict

_NEVER: Final = float("inf")


@dataclass(slots=True, kw_only=True)
class NodeRecord:
    """What is known of one node. Changed by `Nodes` only."""

    node_index: int
    is_owner: bool = False
    local_world_size: int = 0
    lost_s: float | None = None
    ended_s: float | None = None
    """When its launcher first said that torchrun is gone."""
    report: NodeEnded | None = None
    interrupted_by: str | None = None
    interrupted_ns: int = 0
    given_up_because: str | None = None
    """Why training is over although this node never said so."""

    @property
    def is_final(self) -> bool:
        return self.report is not None and self.report.is_final

    def is_lost(self, now: float, grace_s: float) -> bool:
        """Whether its launcher was lost, and for too long to come back."""
        return self.lost_s is not None and self.lost_s + grace_s <= now

    @property
    def why_silent(self) -> str | None:
        """Why it did not report its end, in words; null if it did, or still can."""
        if self.report is not None:
            return None
        if self.lost_s is not None:
            return f"node {self.node_index}'s launcher was lost"
        return self.given_up_because and f"node {self.node_index} {self.given_up_because}"


class Nodes:
    """All launchers that ever connected. Times are the caller's `now`."""

    def __init__(self, *, num_expected: int, is_resumed: bool, loss_grace_s: float, others_grace_s: float) -> None:
        self._num_expected = num_expected
        self._is_resumed = is_resumed
        self._loss_grace_s = loss_grace_s
        self._others_grace_s = others_grace_s
        self._records: dict[int, NodeRecord] = {}

    def __iter__(self) -> Iterator[NodeRecord]:
        return iter(self._records.values())

    def __bool__(self) -> bool:
        return bool(self._records)

    # --- what happened --------------------------------------------------------------------------------------------

    def join(self, node_index: int, *, is_owner: bool, local_world_size: int) -> None:
        record = self.record(node_index)
        record.is_owner |= is_owner
        record.local_world_size = local_world_size or record.local_world_size
        record.lost_s = None

    def lose(self, node_index: int, now: float) -> None:
        record = self.record(node_index)
        if record.lost_s is None:
            record.lost_s = now

    def interrupt(self, node_index: int, signal: str, at_ns: int) -> None:
        record = self.record(node_index)
        if record.interrupted_by is None:
            record.interrupted_by, record.interrupted_ns = signal, at_ns

    def end(self, report: NodeEnded, now: float) -> None:
        """Take a report; a final one stays."""
        record = self.record(report.node_index)
        if record.is_final:
            return
        record.report = report
        record.interrupted_by = record.interrupted_by or report.interrupted_by
        record.ended_s = now if record.ended_s is None else record.ended_s

    def give_up(self, because: str) -> None:
        """Training is over: whoever has not said so by now is not waited for. `because` follows the node's name."""
        for record in self:
            if record.ended_s is None:
                record.given_up_because = because

    # --- what is known --------------------------------------------------------------------------------------------

    def record(self, node_index: int) -> NodeRecord:
        """The record of this node; a new one if it was never heard of."""
        return self._records.setdefault(node_index, NodeRecord(node_index=node_index))

    def get(self, node_index: int) -> NodeRecord | None:
        return self._records.get(node_index)

    @property
    def owner(self) -> NodeRecord | None:
        return next((record for record in self if record.is_owner), None)

    def is_everything_reported(self) -> bool:
        """Whether every launcher that connected has made its final report."""
        return bool(self._records) and all(record.is_final for record in self)

    def is_report_pending(self, now: float) -> bool:
        """Whether a launcher whose torchrun is gone is still handing records in."""
        return any(
            record.report is not None and not record.is_final and not record.is_lost(now, self._loss_grace_s)
            for record in self
        )

    def ended_s(self, now: float) -> float | None:
        """When training ended on all nodes; null while it goes on, as far as anybody can tell."""
        owner = self.owner
        if owner is not None and owner.ended_s is None:
            return owner.lost_s if owner.is_lost(now, self._loss_grace_s) else None
        if not self._records:
            return None
        ends = [record.ended_s if record.ended_s is not None else record.lost_s for record in self]
        latest = max((end for end in ends if end is not None), default=0.0)
        is_over = all(r.ended_s is not None or r.is_lost(now, self._loss_grace_s) for r in self)
        if owner is not None and owner.ended_s is not None:
            is_over &= not self._may_come_back(owner.ended_s, now)
            return latest if is_over or owner.ended_s + self._others_grace_s <= now else None
        is_complete = len(self._records) >= self._num_expected or latest + self._others_grace_s <= now
        return latest if is_over and is_complete else None

    def _may_come_back(self, owner_ended_s: float, now: float) -> bool:
        """Whether a launcher that has not connected to us may have been connected to the daemon before us."""
        is_any_absent = len(self._records) < self._num_expected
        return self._is_resumed and is_any_absent and now < owner_ended_s + self._loss_grace_s

    def next_change(self, now: float) -> float:
        """When the passing of time alone can change the answers above; infinity if never."""
        losses = (r.lost_s + self._loss_grace_s for r in self if r.lost_s is not None and not r.is_final)
        graces = (self._loss_grace_s, self._others_grace_s)
        ends = (r.ended_s + grace_s for r in self if r.ended_s is not None for grace_s in graces)
        lost_ends = (r.lost_s + self._others_grace_s for r in self if r.lost_s is not None)
        return min((t for t in (*losses, *ends, *lost_ends) if t > now), default=_NEVER)

    def verdicts(self) -> tuple[NodeVerdict, ...]:
        """One per node that connected or was expected, in their order."""
        indices = sorted({*self._records, *range(self._num_expected)})
        return tuple(self._verdict(index) for index in indices)

    def _verdict(self, node_index: int) -> NodeVerdict:
        record = self._records.get(node_index)
        if record is None:
            why = f"node {node_index}'s launcher never connected"
            return NodeVerdict(node_index=node_index, exit_code=None, signal=None, why=why)
        report = record.report
        return NodeVerdict(
            node_index=node_index,
            exit_code=report.exit_code if report else None,
            signal=report.signal if report else None,
            why=record.why_silent,
        )
