"""What makes a stated cause less sure: its rank's end, or that nothing ties it to the job. Pure."""

from __future__ import annotations

from typing import Final

from traceml_daemon.triage.asides import CHORES, explains_itself
from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.ends import signal_of
from traceml_daemon.triage.own_source import RAISED_BY_SCRIPTS, innermost
from traceml_daemon.triage.tracebacks import FATAL
from traceml_daemon.triage.verdict import Findings

_CODES_OF_WORDS: Final = frozenset({1, 2, 126, 127})
"""With one of these a process ends after it has said why."""
_OF_MACHINES: Final = frozenset(
    {
        "cuda_oom",
        "cuda_device_assert",
        "cuda_illegal_access",
        "gpu_hardware",
        "host_memory_error",
        "disk_full",
        "corrupted_file",
        "too_many_open_files",
        "thread_limit",
        "port_in_use",
        "network_fabric",
        "dataloader_worker_killed",
    }
)
_USAGE: Final = 2
_OF_ARGPARSE: Final = ": error: "
"""It exits with that code."""


def is_doubtful(first: Cause, rank: int | None, found: Findings) -> bool:
    """Whether the answer should not be given as certain."""
    if first.is_named_by_message or (first.is_weak and _ended_otherwise(found)):
        return True
    if first.raised is None and _is_of_nobody(first, found):
        return True
    rank = rank if first.raised is not None else first.rank
    return first.tier != Tier.RECORD and (_is_quoted(first) or _is_unlike_its_end(first, rank, found))


def _is_quoted(first: Cause) -> bool:
    """The script's own code says in an exception of its own what a machine or a library says in others."""
    raised = first.raised
    if raised is None or first.category not in _OF_MACHINES or raised.short_type not in RAISED_BY_SCRIPTS:
        return False
    return innermost(raised.frames[-1:]) is not None


def _is_of_nobody(first: Cause, found: Findings) -> bool:
    """A line that nothing ties to what ended the job."""
    if first.tier == Tier.RECORD:
        is_other_told = any(explains_itself(cause) for cause in found.causes) or _was_nobody_killed(first, found)
        return first.rank is None and is_other_told
    codes = {end.code for end in found.unexplained_ends()}
    if _OF_ARGPARSE in first.place.quote and codes and _USAGE not in codes:
        return True
    return first.rank is None and first.category in CHORES and _ended_otherwise(found)


def _ended_otherwise(found: Findings) -> bool:
    """Ranks waited, or left with a code that words do not go with."""
    return bool(found.seen.watchdogs) or any(end.code not in _CODES_OF_WORDS for end in found.unexplained_ends())


def _was_nobody_killed(first: Cause, found: Findings) -> bool:
    """A kernel tells of a kill, and the job of other troubles."""
    if first.category != "host_oom_kill":
        return False
    was_killed = any(signal_of(one.code) == 9 for one in found.seen.exits)
    is_told = any("illed" in one.message for one in found.seen.raised)
    return bool(found.seen.raised) and not was_killed and not is_told


def _is_unlike_its_end(first: Cause, rank: int | None, found: Findings) -> bool:
    """An exception that nobody caught makes an exit code of 1: this one was printed, and may have been overcome."""
    end = found.end_with_code()
    if end is not None and end.rank == rank and end.code > _USAGE and not first.is_attributed:
        return True
    own = [end for end in found.ends if end.rank == rank]
    others = [end for end in found.unexplained_ends() if end.rank != rank]
    if rank is None or (first.raised is not None and first.raised.type == FATAL):
        return False
    if not own:  # torchrun tells of all its workers that failed by themselves
        is_torchruns = all(None not in (end.rank, end.local_rank) for end in others)
        return bool(others) and is_torchruns and not found.seen.is_multinode
    return first.raised is not None and any(end.is_fatal or (end.is_by_agent and bool(others)) for end in own)
