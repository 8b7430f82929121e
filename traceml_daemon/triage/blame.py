"""Which rank failed first, and of what: the rules, in their order. Pure.

1. A record of the kernel or of a device about a process decides.
2. An original error beats every consequence; the earliest one wins, and a tie names no rank.
3. What came after a stop from outside, in the same stream, is a consequence of the stop.
4. A crash or a kill beats what its peers say about it.
5. A collective that timed out: who did not arrive is a suspect, and named only if something says so.
6. Only lost peers: the initiator is not in these logs. Nothing but wrappers: the evidence is missing.
"""

from __future__ import annotations

from typing import Final

from traceml_daemon.triage.asides import explains_itself
from traceml_daemon.triage.causes import Cause, Tier, is_consequence
from traceml_daemon.triage.consequences import complete
from traceml_daemon.triage.deaths import blame_crash, blame_exit, blame_kill
from traceml_daemon.triage.ends import End, first_end, signal_of
from traceml_daemon.triage.observations import Observations, Place
from traceml_daemon.triage.originals import blame_originals
from traceml_daemon.triage.recoveries import has_recovered
from traceml_daemon.triage.verdict import BY_SIGNAL, Findings, Verdict, places_of
from traceml_daemon.triage.waiting import blame_communication, is_end_of_waiting

_STOPPING: Final = frozenset({1, 2, 15})
_MANY_AGENTS: Final = 3
"""So many launchers in one log that got the same signal were stopped by something above them."""


def judge(seen: Observations) -> Verdict:
    """Apply the rules."""
    found = Findings(seen)
    verdict = (
        has_recovered(found)
        or _blame_causes(found)
        or blame_kill(found)
        or blame_communication(found)
        or blame_exit(found)
        or _without_cause(found)
    )
    complete(verdict, found)
    return verdict


def _blame_causes(found: Findings) -> Verdict | None:
    """Records, original errors, crashes, stops from outside."""
    stops = _stops(found)
    causes = [cause for cause in found.causes if not is_consequence(cause) and cause.tier != Tier.EXTERNAL]
    if _has_waited(found) and not any(cause.is_stated for cause in stops):
        stops = []
    stops = [cause for cause in stops if not _is_clean_up(cause, found) and not is_end_of_waiting(cause, found)]
    first_stop = min(stops, key=lambda cause: cause.order, default=None)
    if first_stop is not None and (first_stop.is_stated or first_stop.category != "hang"):
        causes = [cause for cause in causes if not _is_after(cause.place, first_stop)]
    originals = [cause for cause in causes if cause.tier <= Tier.FABRIC]
    originals = [cause for cause in originals if not _is_of_others(cause, found)] or originals
    if originals and not _is_outlived(originals, found):
        return blame_originals(originals, found)
    crash = blame_crash(found, [cause for cause in causes if cause.tier == Tier.CRASH])
    if crash is not None and (first_stop is None or not _is_after(crash.evidence[0], first_stop)):
        return crash
    return _of_stop(stops, found) if stops else None


def _is_outlived(causes: list[Cause], found: Findings) -> bool:
    """Only threads failed, and then a rank was killed or crashed: that the thread's rank goes on, nobody prints."""
    end = first_end(found.unexplained_ends())
    is_in_threads = all(cause.raised is not None and cause.raised.is_in_thread for cause in causes)
    return is_in_threads and end is not None and end.is_fatal


def _is_of_others(cause: Cause, found: Findings) -> bool:
    """A kernel's record of a kill that nothing in the job shows: it was another process of that machine."""
    if cause.category != "host_oom_kill" or cause.rank is not None or not found.ends:
        return False
    was_killed = any(signal_of(end.code) == 9 for end in found.ends)
    return not was_killed and not any("illed" in one.message for one in found.seen.raised)


def _is_clean_up(stop: Cause, found: Findings) -> bool:
    """A scheduler ends the other tasks of a step when one has failed or was killed: that is no reason of its own."""
    if stop.category != "sigterm_unattributed" and stop.is_stated:
        return False
    failed = [one for one in found.seen.exits if one.code and signal_of(one.code) not in _STOPPING]
    if any(one.place.file == stop.place.file and one.place.line < stop.place.line for one in failed):
        return True
    tasks = [one for one in failed if one.source == "scheduler" and signal_of(one.code) == 0]
    return any(one.place.file != stop.place.file for one in tasks)


def _has_waited(found: Findings) -> bool:
    """A collective that timed out ends its task, and a scheduler the others for it."""
    return bool(found.seen.watchdogs) or any(cause.tier == Tier.TIMEOUT for cause in found.causes)


def _stops(found: Findings) -> list[Cause]:
    """Signals to torchrun itself, and what schedulers say."""
    causes = [cause for cause in found.causes if cause.tier == Tier.EXTERNAL]
    for one in found.seen.signals:
        if one.direction == "received" and one.number in BY_SIGNAL:
            category = BY_SIGNAL[one.number][0]
            causes.append(Cause(category, True, one.place, None, False, None, category, tier=Tier.EXTERNAL))
    return causes


def _of_stop(stops: list[Cause], found: Findings) -> Verdict:
    """A reason that somebody gives beats the bare signal."""
    named = [cause for cause in stops if cause.category != "sigterm_unattributed"] or stops
    stated = [cause for cause in named if cause.is_stated] or named
    first = min(stated, key=lambda cause: cause.order)
    agents = {one.agent_pid for one in found.seen.signals if one.direction == "received"}
    if first.category == "sigterm_unattributed" and len(agents) >= _MANY_AGENTS:
        verdict = Verdict("collateral_only", "unknown")
        verdict.note = (
            f"{len(agents)} launchers were stopped together from outside; what came first is not in these logs"
        )
    else:
        silent = {cause.rank for cause in named if cause.category == first.category == "hang"} - {None}
        records = found.seen.behind.values() if first.category == "hang" and not silent else ()
        silent |= {rank for _, behind in records for rank in behind}
        rank = silent.pop() if len(silent) == 1 else None
        is_sure = first.is_stated and not any(explains_itself(cause) for cause in found.causes)
        verdict = Verdict(first.category, "confirmed" if is_sure else "likely", rank)
        verdict.evidence = [place for place, behind in records if behind == [rank]]
    verdict.evidence += [cause.place for cause in sorted(stated, key=lambda cause: cause.order)[:3]]
    return verdict


def _without_cause(found: Findings) -> Verdict:
    """Only consequences, only wrappers, or nothing at all."""
    seen = found.seen
    lost = [cause for cause in found.causes if cause.tier == Tier.PEER]
    first = first_end(found.unexplained_ends())
    is_nobodys = any(cause.rank is None for cause in lost)
    is_told = first is not None and (first.rank is not None or signal_of(first.code) != 0)
    if lost and (not is_told or (is_nobodys and first is not None and first.code == 1)):
        return Verdict("collateral_only", "unknown", evidence=[cause.place for cause in lost[:4]])
    if found.ends or seen.wrappers or seen.exits or lost or seen.signals or seen.retries:
        is_stopped = bool(seen.exits) and all(signal_of(one.code) == 15 for one in seen.exits) and not found.ends
        category = "sigterm_unattributed" if is_stopped else "insufficient_evidence"
        verdict = Verdict(category, "unknown", first.rank if first else None)
        verdict.exit_code = first.code if first else None
        ends = [first] if first is not None else found.ends[:3]
        verdict.evidence = [place for end in ends for place in (*places_of(end), *_silence_of(end))]
        verdict.evidence = verdict.evidence or [one.place for one in seen.exits[:2]] or seen.wrappers[:1]
        verdict.evidence = verdict.evidence or [one.place for one in seen.signals[:2]] or seen.retries[:1]
        return verdict
    if seen.suspects or not seen.progress:
        return Verdict("insufficient_evidence", "unknown", evidence=seen.suspects[:3])
    return Verdict("ok", "likely", evidence=seen.progress[:1])


def _silence_of(end: End) -> list[Place]:
    return [one.no_error_file for one in end.reports if one.no_error_file is not None]


def _is_after(place: Place, stop: Cause) -> bool:
    return place.file == stop.place.file and place.line > stop.place.line
