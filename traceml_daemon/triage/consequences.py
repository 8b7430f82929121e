"""What follows from a verdict: which ranks are collateral and why, and where torchrun's table disagrees."""

from __future__ import annotations

from typing import Final

from traceml_daemon.triage.causes import Tier, is_consequence
from traceml_daemon.triage.ends import End, signal_of
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.verdict import Findings, Verdict, places_of

_BY_AGENT: Final = {"sent": "sigterm_by_agent", "forced": "sigkill_by_agent"}


def complete(verdict: Verdict, found: Findings) -> None:
    """Add exit, collateral ranks and torchrun's opinion."""
    verdict.first_returns = found.seen.first_returns
    end = next((end for end in found.ends if end.rank is not None and end.rank == verdict.rank), None)
    if end is not None:
        verdict.exit_code = end.code if verdict.exit_code is None else verdict.exit_code
        verdict.evidence += [place for place in places_of(end) if place not in verdict.evidence]
    if verdict.rank is not None or verdict.category not in ("ok", "insufficient_evidence"):
        _fill_collateral(verdict, found)
    _compare_with_torchrun(verdict, found)


def _fill_collateral(verdict: Verdict, found: Findings) -> None:
    reasons = verdict.collateral
    reasons.update(_closed(found.ends, found.seen))
    if verdict.rank is not None:
        reasons.update(_ended_tasks(found.ends, found.seen))
    for end in found.ends:
        if end.rank is not None and end.is_by_agent:
            reasons[end.rank] = "sigkill_by_agent" if end.code == -9 else "sigterm_by_agent"
    for cause in found.causes:
        if is_consequence(cause) and cause.rank is not None:
            reasons[cause.rank] = "collective_timeout" if cause.tier == Tier.TIMEOUT else "peer_lost"
    for end in found.ends if verdict.rank is not None else ():
        if end.rank is not None and end.code == -6:
            reasons.setdefault(end.rank, "aborted_by_watchdog")
    for rank in (verdict.rank, *verdict.suspects):
        if rank is not None:
            reasons.pop(rank, None)


def _closed(ends: list[End], seen: Observations) -> dict[int, str]:
    """Ranks that are known only by the number of the process that torchrun ended.

    torchrun starts its workers one after the other, and ends or reports each of them. So their order is that of the
    numbers, unless a worker that failed stands at another place.
    """
    closed: dict[int, str] = {}
    for agent in {(one.place.file, one.agent_pid) for one in seen.signals if one.direction == "sent"}:
        sent = {one.pid: one.direction for one in seen.signals if (one.place.file, one.agent_pid) == agent and one.pid}
        own = [end for end in ends if end.pid and _is_reported_by(agent, end)]
        pids = sorted({*sent, *(end.pid for end in own if end.pid)})
        places = {(end.rank or 0) - (end.local_rank or 0) for end in own if end.rank is not None}
        places = places or ({0} if not own and not seen.is_multinode else set())
        if len(places) == 1 and all(pids[end.local_rank or 0 :][:1] == [end.pid] for end in own):
            offset = places.pop()
            closed.update((offset + pids.index(pid), _BY_AGENT[how]) for pid, how in sent.items())
    return closed


def _is_reported_by(agent: tuple[int, int | None], end: End) -> bool:
    """A table does not say which process wrote it."""
    agents = {report.agent[1] for report in end.reports} - {None}
    return end.reports[0].place.file == agent[0] and (not agents or agent[1] in agents)


def _ended_tasks(ends: list[End], seen: Observations) -> dict[int, str]:
    """What a scheduler says of tasks, where nothing says that they are not ranks."""
    if ends or seen.wrappers or any(task != rank for task, rank in seen.task_ranks):
        return {}
    tasks = [(one.agent[2], signal_of(one.code)) for one in seen.exits if one.source == "scheduler"]
    return {
        task: "sigterm_by_agent" if number in (9, 15) else "peer_lost" for task, number in tasks if task is not None
    }


def _compare_with_torchrun(verdict: Verdict, found: Findings) -> None:
    """torchrun of the rank's own node speaks, if it named that rank; else the first that named one."""
    roots = [end for end in found.ends if end.is_root and end.rank is not None]
    if not roots:
        return
    own = next((end for end in roots if end.rank == verdict.rank), roots[0])
    verdict.torchrun_rank = own.rank
    if verdict.rank is None or own.rank == verdict.rank:
        return
    has_raised = verdict.initiator is not None and verdict.initiator.raised is not None
    when = "raised" if has_raised else "ended"
    verdict.torchrun_why = f"it names the process that it saw end first; rank {verdict.rank} {when} earlier"
