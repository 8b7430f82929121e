"""The triage's answer, and what its rules ask of the observations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from traceml_daemon.triage.asides import without_chores
from traceml_daemon.triage.attempts import drop_earlier_attempts
from traceml_daemon.triage.bystanders import without_bystanders
from traceml_daemon.triage.causes import Cause, causes_of, is_consequence
from traceml_daemon.triage.ends import End, collect_ends, first_end, is_multinode, signal_of
from traceml_daemon.triage.leftovers import drop_leftovers
from traceml_daemon.triage.observations import Observations, Place
from traceml_daemon.triage.ranks import conclude_ranks
from traceml_daemon.triage.self_named import name_by_message
from traceml_daemon.triage.survived import without_survived
from traceml_daemon.triage.windows import is_of_windows

Confidence = Literal["confirmed", "likely", "unknown"]

BY_SIGNAL: Final[dict[int, tuple[str, Confidence]]] = {
    1: ("hangup", "likely"),
    2: ("interrupted", "likely"),
    3: ("interrupted", "likely"),
    4: ("illegal_instruction", "likely"),
    6: ("abort", "likely"),
    7: ("bus_error_shm", "likely"),
    8: ("illegal_instruction", "likely"),
    9: ("sigkill_unattributed", "unknown"),
    11: ("segfault", "confirmed"),
    15: ("sigterm_unattributed", "unknown"),
}


def by_code(code: int) -> tuple[str, Confidence]:
    """What an exit of this code is called that tells of a signal; a code of Windows may be of a library's clean-up."""
    category, confidence = BY_SIGNAL[signal_of(code)]
    return category, "likely" if is_of_windows(code) and confidence == "confirmed" else confidence


@dataclass(slots=True)
class Verdict:
    """The diagnosis of a set of logs."""

    category: str
    confidence: Confidence
    rank: int | None = None
    exit_code: int | None = None
    note: str = ""
    """A sentence of its own, where the category says too little."""
    num_alike: int = 0
    """How often the same error was raised."""
    evidence: list[Place] = field(default_factory=list)
    collateral: dict[int, str] = field(default_factory=dict)
    torchrun_rank: int | None = None
    torchrun_why: str | None = None
    first_returns: dict[int, int] = field(default_factory=dict)
    """By file, as observed."""
    suspects: list[int] = field(default_factory=list)
    """Ranks that may be the ones to look at, without proof."""
    initiator: Cause | None = None


class Findings:
    """What the logs hold, put in order once for all rules."""

    def __init__(self, seen: Observations) -> None:
        self.seen = seen
        drop_earlier_attempts(seen)
        drop_leftovers(seen)
        seen.is_multinode = seen.is_multinode or is_multinode(seen)
        self.ends = collect_ends(seen)
        self.causes = without_bystanders(causes_of(seen), self.ends, seen)
        conclude_ranks(self.causes, self.ends, seen)
        name_by_message(self.causes, seen.num_workers)
        self.causes = without_chores(without_survived(self.causes, self.ends), self.ends)

    def unexplained_ends(self) -> list[End]:
        """Of ranks that did not tell themselves that they are consequences, and that torchrun did not end."""
        told = {cause.rank for cause in self.causes if is_consequence(cause) and cause.rank is not None}
        return [end for end in self.ends if not end.is_by_agent and end.rank not in told]

    def end_with_code(self) -> End | None:
        """The worker that ended first, if it did with a code that a script chooses."""
        end = first_end(self.unexplained_ends())
        if end is None or end.code <= 0 or signal_of(end.code):
            return None
        return end if end.code > 2 or any(report.is_chosen for report in end.reports) else None

    def world_size(self) -> int:
        """At least so many ranks there were."""
        ranks = {end.rank for end in self.ends if end.rank is not None}
        ranks |= {cause.rank for cause in self.causes if cause.rank is not None}
        closed = {one.pid for one in self.seen.signals if one.direction == "sent"}
        pids = (closed | {end.pid for end in self.ends}) - {None}
        return max([self.seen.num_workers, len(pids), *(rank + 1 for rank in ranks)])


def places_of(end: End | None) -> list[Place]:
    if end is None:
        return []
    said = [one.message_place for one in end.reports if one.message_place and one.message.startswith("Signal ")]
    return [report.place for report in end.reports] + said
