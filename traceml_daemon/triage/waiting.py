"""Rules for communication that failed: who waited, for whom, and whether all did the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.observations import Raised
from traceml_daemon.triage.verdict import Findings, Verdict

_ENDING: Final = frozenset({"interrupted", "hangup", "sigterm_unattributed"})
_MEETING: Final = re.compile(r"torch/distributed/(?:elastic/rendezvous/\w+|rendezvous)\.py:|:_store_based_barrier")
_LEFT: Final = re.compile(r"(?i)closed|reset by peer|broken pipe|got 0 bytes")
_ABSENT: Final = re.compile(r"\bRank (\d{1,6}) failed to pass monitoredBarrier")
"""The one that checks a barrier says who did not come."""


def blame_communication(found: Findings) -> Verdict | None:
    """A time-out, a library's error, a meeting that failed, torchrun itself: nothing says why."""
    for tier in (Tier.TIMEOUT, Tier.SYSTEM, Tier.RENDEZVOUS, Tier.AGENT):
        group = [cause for cause in found.causes if cause.tier == tier]
        if tier == Tier.TIMEOUT and (group or found.seen.watchdogs):
            if found.end_with_code() is None:
                return _timeout(found, group)
        elif group:
            first = group[0]
            verdict = Verdict(first.category, "confirmed" if first.is_stated else "likely", initiator=first)
            verdict.evidence = [first.place, *first.support, *(cause.place for cause in group[1:4])]
            verdict.rank = _only_rank(group) if tier == Tier.SYSTEM else None
            return verdict
    return None


def _only_rank(group: list[Cause]) -> int | None:
    """The only rank that speaks of it; or that failed of something which it did not get of its own node."""
    signed = {cause.rank for cause in group}
    if len(signed) == 1 and group[0].is_attributed:
        return signed.pop()
    own = {cause.rank for cause in group if cause.is_stated and (cause.raised is not None or cause.rank is not None)}
    return own.pop() if len(own) == 1 and all(cause.is_stated for cause in group if cause.raised is not None) else None


def is_end_of_waiting(stop: Cause, found: Findings) -> bool:
    """Somebody stopped a node that waited for another one, which could not come and says so."""
    if stop.category not in _ENDING:
        return False
    stopped = [stop.raised] if stop.raised is not None else _signaled(stop.place.file, found)
    if not any(_MEETING.search("\n".join(one.frames)) for one in stopped):
        return False
    apart = [cause for cause in found.causes if cause.tier == Tier.RENDEZVOUS and cause.is_stated]
    apart = [cause for cause in apart if cause.place.file != stop.place.file or cause.order < stop.order]
    return any(cause.raised is not None and not _is_left(cause.raised) for cause in apart)


def _signaled(file: int, found: Findings) -> list[Raised]:
    return [one for one in found.seen.raised if one.place.file == file and one.short_type == "SignalException"]


def _is_left(raised: Raised) -> bool:
    """It had met the other one, or the other one was gone."""
    return any(_LEFT.search(f"{one.type} {one.message}") for one in raised.chain())


def _timeout(found: Findings, group: list[Cause]) -> Verdict:
    """A rank that waited is a victim; one that is behind or silent is a suspect, and no more."""
    dogs = found.seen.watchdogs
    category = "collective_mismatch" if _is_mismatch(found) else "collective_timeout"
    verdict = Verdict(category, "likely")
    verdict.evidence = [dog.place for dog in sorted(dogs, key=lambda dog: dog.sequence)[:4]] + [
        cause.place for cause in group[:3]
    ]
    absent = {int(said[1]) for cause in group if (said := _ABSENT.search(cause.place.quote))}
    waited = {dog.rank for dog in dogs} | {cause.rank for cause in group}
    verdict.rank = absent.pop() if len(absent) == 1 and not absent & waited else None
    sequences = {dog.rank: dog.sequence for dog in dogs if dog.rank is not None}
    behind = [rank for rank, number in sequences.items() if number == min(sequences.values())]
    world_size = found.world_size()
    if len(behind) == 1 and len(sequences) > 2:
        verdict.suspects = behind
    elif len(waited - {None}) < world_size:
        verdict.suspects = [rank for rank in range(min(world_size, 4096)) if rank not in waited][:16]
    return verdict


def _is_mismatch(found: Findings) -> bool:
    """At one number in the sequence, ranks ran different operations or sizes; or all waited in different calls."""
    operations: dict[tuple[str, int], set[tuple[str, int | None]]] = {}
    for dog in found.seen.watchdogs:
        operations.setdefault((dog.group, dog.sequence), set()).add((dog.operation, dog.numel))
    if any(len(different) > 1 for different in operations.values()):
        return True
    calls = {
        cause.rank: call
        for cause in found.causes
        if cause.tier == Tier.TIMEOUT and cause.raised is not None and (call := collective_of(cause.raised.frames))
    }
    return len(set(calls.values())) > 1 and len(calls) == found.world_size()


def collective_of(frames: Sequence[str]) -> str | None:
    """The call of torch.distributed that a traceback ends in, or the backward, in which gradients are exchanged."""
    calls = [frame.rpartition(":")[2] for frame in frames if "distributed_c10d.py" in frame]
    in_backward = "backward" if any(frame.endswith(":_engine_run_backward") for frame in frames) else None
    return calls[-1] if calls else in_backward
