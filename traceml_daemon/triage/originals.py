"""Of several original errors: which one came first, and whose it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceml_daemon.triage.asides import without_asides
from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.doubts import is_doubtful
from traceml_daemon.triage.ends import first_end
from traceml_daemon.triage.odd_replica import CATEGORY as REPLICAS_DIFFER
from traceml_daemon.triage.odd_replica import is_comparison, odd_replica
from traceml_daemon.triage.verdict import Findings, Verdict

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


def blame_originals(causes: list[Cause], found: Findings) -> Verdict:
    """The earliest of the strongest; a tie names no rank."""
    tier = min(cause.tier for cause in causes)
    group = [cause for cause in causes if cause.tier == tier]
    lasting = [cause for cause in group if not cause.is_weak] or group
    num_seen, lasting = len(lasting), without_asides(lasting)
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
    said = [cause.raised.place for cause in same if cause.raised is not None]
    places = [first.place, *first.support, *said[:1], *(cause.place for cause in same[:4] if cause.raised is None)]
    verdict.evidence = list(dict.fromkeys(places))
    if verdict.rank is None:
        verdict.suspects = sorted({cause.rank for cause in lasting if cause.rank is not None})
    is_open = verdict.rank is None and len({first.category, *(cause.category for cause in others)}) > 1
    if is_open or len(lasting) < num_seen or is_doubtful(first, verdict.rank, found):
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
