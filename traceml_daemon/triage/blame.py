"""Which rank failed first, and of what: the rules, in their order. Pure.

1. A record of the kernel or of a device about a process decides.
2. An original error beats every consequence; the earliest one wins, and a tie names no rank.
3. What came after a stop from outside, in the same stream, is a consequence of the stop.
4. A crash or a kill beats what its peers say about it.
5. A collective that timed out: who did not arrive is a suspect, and named only if something says so.
6. Only lost peers: the initiator is not in these logs. Nothing but wrappers: the evidence is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceml_daemon.triage.causes import Cause, Tier, is_consequence
from traceml_daemon.triage.consequences import complete
from traceml_daemon.triage.deaths import blame_crash, blame_exit, blame_kill
from traceml_daemon.triage.ends import first_end, signal_of
from traceml_daemon.triage.observations import Observations, Place
from traceml_daemon.triage.odd_replica import CATEGORY as REPLICAS_DIFFER
from traceml_daemon.triage.odd_replica import is_comparison, odd_replica
from traceml_daemon.triage.recoveries import has_recovered
from traceml_daemon.triage.verdict import BY_SIGNAL, Findings, Verdict, places_of
from traceml_daemon.triage.waiting import blame_communication

_CLEAR_LEAD_S: Final = 2.0
"""Between two raises; loggers differ by less, and a rank that fails of another one often takes less."""
_CLEAR_LEAD_IN_FILE_S: Final = 0.3
"""By one clock of finer grain than seconds."""
_HALF_A_DAY_S: Final = 43_200.0
_EPOCH_S: Final = 1e9
_TWO_RANKS: Final = re.compile(r"\brank \d+ version .*\brank \d+ version|Detected mismatch between collectives")
"""Two that differ, and neither is the odd one."""
_BROKEN_PIPES: Final = frozenset({"EOFError", "BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError"})
_THREAD_GONE: Final = "thread exited unexpectedly"
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
    stops = [cause for cause in stops if not _is_clean_up(cause, found)]
    first_stop = min(stops, key=lambda cause: cause.order, default=None)
    if first_stop is not None and (first_stop.is_stated or first_stop.category != "hang"):
        causes = [cause for cause in causes if not _is_after(cause.place, first_stop)]
    originals = [cause for cause in causes if cause.tier <= Tier.FABRIC]
    originals = [cause for cause in originals if not _is_of_others(cause, found)] or originals
    if originals:
        return _of_originals(originals, found)
    crash = blame_crash(found, [cause for cause in causes if cause.tier == Tier.CRASH])
    if crash is not None and (first_stop is None or not _is_after(crash.evidence[0], first_stop)):
        return crash
    return _of_stop(stops, found) if stops else None


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


def _of_originals(causes: list[Cause], found: Findings) -> Verdict:
    tier = min(cause.tier for cause in causes)
    group = [cause for cause in causes if cause.tier == tier]
    lasting = [cause for cause in group if not cause.is_weak] or group
    if all(_is_echo(cause) for cause in lasting):
        lasting = [cause for cause in group if cause.raised is not None and cause.raised.is_in_thread] or lasting
    _share_times(lasting)
    if {cause.category for cause in lasting} == {"no_gpu"}:
        lasting = [cause for cause in group if cause.category == "gpu_driver_mismatch"] or lasting
    specific = [cause for cause in lasting if cause.category != "python_exception"]
    first = _first_by_clock(lasting) or (specific if _is_explained_by(specific, lasting) else lasting)[0]
    alike = [cause for cause in lasting if cause.signature == first.signature]
    others = [cause for cause in lasting if cause.rank != first.rank or cause.rank is None]
    verdict = Verdict(first.category, "confirmed" if first.is_stated else "likely", initiator=first)
    verdict.num_alike = len(alike)
    odd = _odd_one(lasting, found) if first.category == REPLICAS_DIFFER else None
    is_either = first.raised is not None and is_comparison(first.raised.message)
    verdict.rank = _rank_of(first, alike, others) if odd is None and not is_either else odd
    if verdict.rank is None and first.rank is None and tier != Tier.FABRIC:
        is_line = len(alike) == 1 or all(cause.raised is None for cause in alike)
        verdict.rank = _sole_rank([c for c in lasting if c.category == first.category]) if is_line else None
    if verdict.rank is not None and (_is_one_of_many(first, lasting, found) or _is_only_one_shown(lasting, found)):
        verdict.rank = None
    if odd not in (None, first.rank):
        verdict.confidence = "likely"
    same = [cause for cause in lasting if cause.category == first.category and cause.rank in (None, verdict.rank)]
    places = [first.place, *first.support, *(cause.place for cause in same[:4] if cause.raised is None)]
    verdict.evidence = list(dict.fromkeys(places))
    if verdict.rank is None:
        verdict.suspects = sorted({cause.rank for cause in lasting if cause.rank is not None})
    if verdict.rank is None and len({cause.category for cause in others}) > 1 and first.is_stated:
        verdict.confidence = "likely"
    return verdict


def _is_echo(cause: Cause) -> bool:
    """Raised where a thread or a process of the same rank, at the other end of a pipe, is gone."""
    raised = cause.raised
    return raised is not None and (raised.short_type in _BROKEN_PIPES or _THREAD_GONE in raised.message)


def _share_times(causes: Sequence[Cause]) -> None:
    """A traceback has no time; what a watchdog logged of the same error in the same rank has one."""
    for cause in causes:
        if cause.time is None and cause.rank is not None:
            same = (one.time for one in causes if (one.rank, one.category) == (cause.rank, cause.category))
            cause.time = min((time for time in same if time is not None), default=None)


def _odd_one(causes: list[Cause], found: Findings) -> int | None:
    """By majority; where no launcher says how many ranks there were, one more may have been silent."""
    said = [one.raised.message if one.raised else one.place.quote for one in causes if one.category == REPLICAS_DIFFER]
    is_counted = bool(found.ends) or found.seen.num_workers > 0
    return odd_replica(said, found.world_size() + (not is_counted))


def _is_explained_by(specific: list[Cause], everything: list[Cause]) -> bool:
    """A sign beside a plain exception of nobody, or of the same rank, says what the exception does not."""
    plain = [cause for cause in everything if cause.category == "python_exception"]
    if not specific or not plain:
        return bool(specific)
    return plain[0].rank is None or any(cause.rank in (None, plain[0].rank) for cause in specific)


def _rank_of(first: Cause, alike: list[Cause], others: list[Cause]) -> int | None:
    """The rank of the first cause, if it is known and no other rank may have been earlier."""
    if first.tier == Tier.FABRIC or _TWO_RANKS.search(first.place.quote):
        return None
    ranks = {cause.rank for cause in alike if cause.rank is not None or cause.raised is not None}
    if len(ranks) > 1:
        return _earliest(alike)
    if first.rank is None and len(ranks) == 1:
        first = next((cause for cause in alike if cause.rank is not None), first)
    if not first.is_attributed and sum(1 for cause in alike if not cause.is_attributed) > 1:
        return None
    rivals = [cause for cause in others if cause.rank is not None and cause.rank != first.rank]
    return first.rank if not rivals or first.rank is None else _earliest([first, *rivals])


def _sole_rank(causes: list[Cause]) -> int | None:
    """Of an exception that nobody signed and a watchdog's line about the same error, which names its rank."""
    ranks = {cause.rank for cause in causes if cause.rank is not None}
    return ranks.pop() if len(ranks) == 1 and sum(cause.raised is not None for cause in causes) == 1 else None


def _is_one_of_many(first: Cause, causes: list[Cause], found: Findings) -> bool:
    """Several ranks ended alike and raised the same unsigned: a rank whose line is signed is only one of them."""
    if first.raised is not None or any(cause.raised is not None and cause.rank is not None for cause in causes):
        return False
    ends = found.unexplained_ends()
    nobodys = [cause for cause in causes if cause.raised is not None and cause.category == first.category]
    return bool(nobodys) and len(ends) > 1 and first_end(ends) is None


def _is_only_one_shown(causes: list[Cause], found: Findings) -> bool:
    """Several ranks exited alike in one second, and the logs hold lines of a single one: a filter may show no other."""
    ends = found.unexplained_ends()
    silent = [end for end in ends if end.rank not in found.seen.heard]
    is_tie = {end.code for end in ends} == {1} and first_end(ends) is None and len(silent) == len(ends) - 1 > 1
    return is_tie and all(cause.rank is not None or cause.raised is None for cause in causes)


def _earliest(causes: Sequence[Cause]) -> int | None:
    first = _first_by_clock(causes)
    return first.rank if first is not None else None


def _first_by_clock(causes: Sequence[Cause]) -> Cause | None:
    """If the clocks tell the ranks apart; the order of lines alone proves nothing."""
    causes = [cause for cause in causes if cause.rank is not None or cause.raised is not None]
    if any(cause.time is None or cause.rank is None for cause in causes):
        return None
    if len({_clock_of(cause.time or 0.0) for cause in causes}) > 1:
        return None
    timed = sorted(causes, key=lambda cause: cause.time or 0.0)
    other = next((cause for cause in timed if cause.rank != timed[0].rank), None)
    if other is None or not _is_clearly_before(timed[0], other):
        return None
    own = [cause for cause in timed if _is_clearly_before(cause, other)]
    return next((cause for cause in own if cause.category != "python_exception"), timed[0])


def _clock_of(time: float) -> int:
    """Which kind of clock shows such a time: of the day, and its half, of the year, or of the epoch."""
    return int(time / _HALF_A_DAY_S) if time < 2 * _HALF_A_DAY_S else 2 if time < _EPOCH_S else 3


def _is_clearly_before(one: Cause, other: Cause) -> bool:
    first, second = one.time or 0.0, other.time or 0.0
    is_fine = one.place.file == other.place.file and first % 1 != 0 and second % 1 != 0
    return second - first >= (_CLEAR_LEAD_IN_FILE_S if is_fine else _CLEAR_LEAD_S)


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
        verdict = Verdict(first.category, "confirmed" if first.is_stated else "likely", rank)
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
    if found.ends or seen.wrappers or seen.exits or lost or seen.signals:
        is_stopped = bool(seen.exits) and all(signal_of(one.code) == 15 for one in seen.exits) and not found.ends
        category = "sigterm_unattributed" if is_stopped else "insufficient_evidence"
        verdict = Verdict(category, "unknown", first.rank if first else None)
        verdict.exit_code = first.code if first else None
        ends = [first] if first is not None else found.ends[:3]
        verdict.evidence = [place for end in ends for place in places_of(end)]
        verdict.evidence = verdict.evidence or [one.place for one in seen.exits[:2]] or seen.wrappers[:1]
        verdict.evidence = verdict.evidence or [one.place for one in seen.signals[:2]]
        return verdict
    if seen.suspects or not seen.progress:
        return Verdict("insufficient_evidence", "unknown", evidence=seen.suspects[:3])
    return Verdict("ok", "likely", evidence=seen.progress[:1])


def _is_after(place: Place, stop: Cause) -> bool:
    return place.file == stop.place.file and place.line > stop.place.line
