"""When a run is over and when it is sealed: the finalization machine.

Theory of operation
===================

A run is *collecting* until training has ended, *settling* until nothing more is worth waiting for, then *sealed*.

    collecting --training has ended--> settling --nobody is waited for, and quiet--> sealed
                                           '----------the finalize timeout----------->'

Training has ended when `Nodes` says so, or, without a launcher, when every rank that was seen is finished or lost and
those that never came have had their grace; or when the daemon is told to stop. While training lives, silence alone
ends nothing. At its end every unfinished rank becomes suspect; see `ranks` for what that costs.

Settling ends in one of three ways. *At once*, if nothing more can come: every launcher has made its final report (or
there is none), every rank is exhausted, and the store has committed everything. *After the settle window*, if every
rank is finished or lost and no sign came for `settle_s`. *At the timeout*, whatever happens; a part of it is kept back
for writing the reports. A daemon that is told to stop allows one settle window.

Time is an argument. `handle` notes what happened; conclusions are drawn by `advance`, never at the instant of the
event that allows them but `SIMULTANEOUS_S` later, so that events of one instant give one verdict in any order. The
shell calls `advance` at `next_deadline`, which always lies ahead. After a pause (a stopped daemon) graces that ran out
meanwhile are noticed first and a whole settle window follows, in which the sockets' backlog is read.
"""

from __future__ import annotations

from typing import Final, Literal

from traceml_daemon.core import events as ev
from traceml_daemon.core.ledger import Ledger
from traceml_daemon.core.settings import CoreSettings
from traceml_daemon.core.verdict import MissingRanks, judge_direct, judge_launched

Phase = Literal["collecting", "settling", "sealed"]

SIMULTANEOUS_S: Final = 0.01
"""What the shell reads in one turn of its loop counts as one instant; far below anything that a person notices."""
_NEVER: Final = float("inf")


class RunCore:
    """One run from its first event to its seal. Events in, commands out; see the module for the theory.

    `now` never goes back between calls. Commands are to be executed in their order. After the seal events are counted
    in `num_late_events` and change nothing.
    """

    def __init__(self, settings: CoreSettings, now: float) -> None:
        self._settings = settings
        self._ledger = Ledger(settings, now)
        self.ranks = self._ledger.ranks
        self.nodes = self._ledger.nodes
        self._missing = MissingRanks(self._ledger, nproc_per_node=settings.nproc_per_node)
        self.phase: Phase = "collecting"
        self.num_late_events = 0
        self._due = _NEVER
        self._is_interruption_told = False
        self._is_stopped_early = False
        self._ended_s = _NEVER
        self._seal_by = _NEVER

    # --- the two doors --------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> list[ev.Command]:
        """Take note of what happened; return what follows at once."""
        commands = self.advance(now)
        if self.phase == "sealed":
            self.num_late_events += 1
            return commands
        if self._ledger.enter(event, now):
            self._due = min(self._due, now + SIMULTANEOUS_S)
        if isinstance(event, ev.LauncherInterrupted):
            commands += self._tell_interruption()
        return commands

    def advance(self, now: float) -> list[ev.Command]:
        """Draw the conclusions that are due."""
        if now < self._due:
            return []
        commands: list[ev.Command] = []
        is_one_given_up = self.ranks.expire(now)
        if self.phase == "collecting":
            commands += self._end_training(now)
        elif is_one_given_up:
            self._ledger.heard_s = now
        if self.phase == "settling":
            commands += self._seal(now)
        self._due = self._next_change(now)
        return commands

    def next_deadline(self) -> float | None:
        """When `advance` has to be called, if no event comes before; null if only events can change anything."""
        return self._due if self._due < _NEVER else None

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def is_direct(self) -> bool:
        return self._settings.is_direct and not self.nodes

    def world_size(self) -> int:
        """As the youngest attempt says; before the first one, as the launch does; 0 if nobody knows."""
        nproc = self._settings.nproc_per_node
        known = [node.local_world_size for node in self.nodes]
        num_unknown = max(0, self._settings.nnodes - len(known))
        return self.ranks.world_size(sum(n or nproc for n in known) + num_unknown * nproc)

    def split_ranks(self, cut_because: str | None = None) -> tuple[tuple[int, ...], tuple[ev.RankMissing, ...]]:
        """(finished, missing) as of now, for the seal and for provisional reports."""
        return self._missing.split(self.world_size(), cut_because=cut_because)

    def verdict(self) -> ev.TrainingVerdict:
        """How training ended, as far as is known."""
        if self.is_direct:
            return judge_direct(self.ranks, self.split_ranks()[1], is_stopped=self._is_stopped_early)
        return judge_launched(self.nodes, is_stopped=self._is_stopped_early)

    def _num_unseen(self) -> int:
        attempts = self.ranks.last_attempts()
        return sum(rank not in attempts for rank in range(self.world_size()))

    # --- collecting -----------------------------------------------------------------------------------------------

    def _tell_interruption(self) -> list[ev.Command]:
        """The owner's first signal, told once; another node's says nothing of the whole run."""
        owner = self.nodes.owner
        if self._is_interruption_told or self.phase != "collecting" or owner is None or owner.interrupted_by is None:
            return []
        self._is_interruption_told = True
        return [ev.MarkInterrupted(owner.interrupted_by, owner.interrupted_ns)]

    def _end_training(self, now: float) -> list[ev.Command]:
        ended_s = self._direct_ended_s(now) if self.is_direct else self.nodes.ended_s(now)
        stopped_s = self._ledger.stopped_s
        if stopped_s is not None and (ended_s is None or stopped_s < ended_s):
            self._is_stopped_early, ended_s = True, stopped_s
        if ended_s is None:
            return []
        self._seal_by = max(now, ended_s + self._settings.collect_s)
        self._ended_s, self._ledger.heard_s = ended_s, now
        self.phase = "settling"
        self.ranks.end(now)
        self._give_up_nodes(now)
        verdict = self.verdict()
        warnings = (ev.WarnOnce(node.why) for node in verdict.nodes if node.why is not None)
        return [ev.EndTraining(verdict, ended_s), *warnings]

    def _direct_ended_s(self, now: float) -> float | None:
        """Every rank is finished or gone; those that never came get the grace after the last sign of the others."""
        heard_s = self._ledger.heard_s
        if len(self.ranks) == 0 or self.ranks.num_open:
            return None
        is_waiting = now < heard_s + self._settings.reconnect_grace_s and self._num_unseen() > 0
        return None if is_waiting else heard_s

    def _give_up_nodes(self, now: float) -> None:
        """Whoever has not reported by now is not waited for; ten seconds after the owner's end, nor are its ranks."""
        owner = self.nodes.owner
        if self._is_stopped_early:
            because = "was still running when the daemon was told to stop"
        elif owner is not None and owner.ended_s is not None:
            because = f"had not reported its end {self._settings.other_nodes_grace_s:g} s after the owner's"
            for node in self.nodes:
                if node.ended_s is None and node.lost_s is None:
                    self.ranks.abandon_node(node.node_index, now)
        else:
            because = "was still running when the owner's launcher was lost"
        self.nodes.give_up(because)

    # --- settling -------------------------------------------------------------------------------------------------

    def _is_vouched(self) -> bool:
        """Whether somebody knows that no other rank will come: each launcher, or the end of a direct launch itself."""
        return self.is_direct or self.nodes.is_everything_reported()

    def _is_nothing_awaited(self, now: float) -> bool:
        """Every rank is finished or lost, and every launcher that will hand records in has done so."""
        if self.ranks.num_open or self.nodes.is_report_pending(now):
            return False
        is_grace_over = now >= self._ended_s + self._settings.reconnect_grace_s
        return self._is_vouched() or is_grace_over or self._num_unseen() == 0

    def _is_quiet(self, now: float) -> bool:
        """Nothing more can come, or nothing came for the settle window."""
        if now >= self._ledger.heard_s + self._settings.settle_s:
            return True
        return self._is_vouched() and self._ledger.is_drained and all(record.is_exhausted for record in self.ranks)

    def _seal(self, now: float) -> list[ev.Command]:
        stopped_s = self._ledger.stopped_s
        if stopped_s is not None:
            self._seal_by = min(self._seal_by, stopped_s + self._settings.settle_s)
        is_over = self._is_nothing_awaited(now) and self._is_quiet(now)
        if not is_over and now < self._seal_by:
            return []
        self.phase = "sealed"
        if is_over:
            return [self._sealing(cut_because=None)]
        if stopped_s is not None:
            return [self._sealing(cut_because="the daemon was told to stop")]
        limit = f"the finalize timeout of {self._settings.finalize_timeout_s:g} s ran out"
        return [ev.WarnOnce(f"{limit} before telemetry was quiet"), self._sealing(cut_because=limit, is_timeout=True)]

    def _sealing(self, *, cut_because: str | None, is_timeout: bool = False) -> ev.SealRun:
        finished, missing = self.split_ranks(cut_because)
        return ev.SealRun(
            reason="finalize_timeout" if is_timeout else "ranks_missing" if missing else "all_finished",
            verdict=self.verdict(),
            finished=finished,
            missing=missing,
            deadline_s=self._seal_by + self._settings.reserve_s,
        )

    # --- time -----------------------------------------------------------------------------------------------------

    def _next_change(self, now: float) -> float:
        """When the passing of time alone changes something."""
        if self.phase == "sealed":
            return _NEVER
        times = [self.ranks.next_expiry(), self.nodes.next_change(now)]
        if self.phase == "settling":
            times += [self._seal_by, self._ledger.heard_s + self._settings.settle_s]
            times += [self._ended_s + self._settings.reconnect_grace_s]
        elif self.is_direct:
            times += [self._ledger.heard_s + self._settings.reconnect_grace_s]
        return min((time for time in times if time > now), default=_NEVER)
