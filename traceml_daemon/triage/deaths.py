"""Rules for processes that ended without an exception: crashes, kills, exit codes."""

from __future__ import annotations

import re

from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.ends import End, first_end, only_worker, signal_of, task_ended_by
from traceml_daemon.triage.observations import Exit, Place
from traceml_daemon.triage.tracebacks import FATAL
from traceml_daemon.triage.verdict import Confidence, Findings, Verdict, by_code, places_of
from traceml_daemon.triage.windows import is_of_windows

_CRASHES = frozenset({4, 6, 7, 8, 11})
_STOPS = frozenset({1, 2, 15})
_OF_PEERS = re.compile(r"c10::Dist\w+Error|c10d::|gloo::|NCCL")
"""Exceptions of C++ by which a process says that it lost a peer, and aborts."""


def blame_crash(found: Findings, words: list[Cause]) -> Verdict | None:
    """A process that died of its own fault: by its exit, by its last words, or both.

    An abort after a time-out, or of a rank that lost a peer, is the watchdog's, which ends those that wait.
    """
    fatal = [cause for cause in found.causes if cause.raised is not None and cause.raised.type == FATAL]
    if fatal and all(cause.tier == Tier.AGENT for cause in fatal):
        return None  # it was torchrun itself that crashed, after its workers had ended
    is_waiting = any(cause.tier == Tier.TIMEOUT for cause in found.causes) or bool(found.seen.watchdogs)
    crashed = [end for end in found.ends if signal_of(end.code) in _CRASHES and not end.is_by_agent]
    if is_waiting:
        crashed = [end for end in crashed if signal_of(end.code) != 6]
        words = [cause for cause in words if cause.category != "abort"]
    if any(cause.tier == Tier.PEER for cause in found.causes):
        words = [cause for cause in words if not _OF_PEERS.search(cause.place.quote)]
    losers = {cause.rank for cause in found.causes if cause.tier == Tier.PEER and cause.rank is not None}
    raisers = {cause.rank for cause in found.causes if cause.tier == Tier.PEER and cause.raised is not None} - {None}
    crashed = [end for end in crashed if end.rank not in (losers if signal_of(end.code) == 6 else raisers)]
    crashed = [end for end in crashed if signal_of(end.code) != 6] or crashed
    if crashed:
        return _of_ends(found, crashed, words)
    end = first_end(found.ends)
    if words and (end is None or end.code != -9):
        first = words[0]
        rank = first.rank if len({cause.rank for cause in words}) == 1 else None
        is_told = first.is_stated and first.category != "abort"
        return Verdict(first.category, "confirmed" if is_told else "likely", rank, evidence=[first.place])
    if any(signal_of(end.code) == 9 and not end.is_by_agent for end in found.ends):
        return None  # what a launcher says of another crash is of another program
    for one in found.seen.exits:
        number = signal_of(one.code)
        if one.source in ("launcher", "scheduler") and number in _CRASHES and not (number == 6 and is_waiting):
            category, confidence = by_code(one.code)
            return Verdict(category, confidence, only_worker(found.seen), one.code, evidence=[one.place])
    return None


def _of_ends(found: Findings, crashed: list[End], words: list[Cause]) -> Verdict | None:
    first = first_end(found.ends)
    if first is None or first not in crashed:
        first = crashed[0] if len(crashed) == 1 and (first is None or first.code in (1, -6)) else None
    numbers = {signal_of(end.code) for end in crashed}
    if first is None and len(numbers) > 1:
        return None
    number = signal_of(first.code) if first is not None else numbers.pop()
    category, confidence = by_code(first.code if first is not None else crashed[0].code)
    specific = next((cause.category for cause in words if cause.category != "abort"), None)
    if number == 6:
        category, confidence = _of_abort(specific, has_words=bool(words), is_one=first is not None)
    evidence = [cause.place for cause in words[:2]]
    evidence += [place for end in ([first] if first is not None else crashed) for place in places_of(end)]
    rank = first.rank if first is not None else None
    return Verdict(category, confidence, rank, crashed[0].code, evidence=evidence)


def _of_abort(specific: str | None, *, has_words: bool, is_one: bool) -> tuple[str, Confidence]:
    if specific is not None:
        return specific, "confirmed"
    return "abort", "likely" if is_one or has_words else "unknown"


def blame_kill(found: Findings) -> Verdict | None:
    """Processes that were ended: by SIGKILL, or by a SIGTERM that torchrun did not send."""
    killed = [end for end in found.ends if signal_of(end.code) == 9 and not end.is_by_agent]
    first = first_end(found.ends)
    if killed:
        one = first if first in killed else killed[0] if len(killed) == 1 else None
        evidence: list[Place] = [place for end in killed[:3] for place in places_of(end)]
        return Verdict("sigkill_unattributed", "unknown", one.rank if one else None, killed[0].code, evidence=evidence)
    for report in found.seen.exits:
        if _is_bare_kill(report) and not _is_clean_up(report, found):
            rank = only_worker(found.seen)
            rank = task_ended_by(9, found.seen) if rank is None and not found.ends else rank
            return Verdict("sigkill_unattributed", "unknown", rank, report.code, evidence=[report.place])
    ended = [end for end in found.ends if signal_of(end.code) in _STOPS and not end.is_by_agent]
    if ended and first is ended[0] and not any(cause.tier == Tier.TIMEOUT for cause in found.causes):
        category, confidence = by_code(first.code)
        return Verdict(category, confidence, first.rank, first.code, evidence=places_of(first))
    for report in found.seen.exits:
        if report.source == "launcher" and is_of_windows(report.code) and signal_of(report.code) in _STOPS:
            category, confidence = by_code(report.code)
            return Verdict(category, confidence, only_worker(found.seen), report.code, evidence=[report.place])
    return None


def _is_bare_kill(report: Exit) -> bool:
    return report.source in ("launcher", "scheduler") and signal_of(report.code) == 9


def _is_clean_up(kill: Exit, found: Findings) -> bool:
    """When one worker has failed, launchers kill the rest, and a shell or a scheduler tells of that afterwards.

    A worker that lost its peer is told of before the peer, too, and says so.
    """
    if any(cause.tier == Tier.PEER for cause in found.causes):
        return False
    failed = [one.place for one in found.seen.exits if one.code and signal_of(one.code) not in (9, *_STOPS)]
    return any(place.file == kill.place.file and place.line < kill.place.line for place in failed)


def blame_exit(found: Findings) -> Verdict | None:
    """A worker exited with a code of its own, and is only known by it."""
    end = found.end_with_code()
    if end is None:
        return None
    category = "command_not_found" if end.code in (126, 127) else "nonzero_exit"
    return Verdict(category, "likely", end.rank, end.code, evidence=places_of(end))
