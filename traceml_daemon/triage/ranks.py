"""Whose cause it is, where its own line does not say: by exits, labels, process ids, and what the ranks raised."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from traceml_daemon.triage.bystanders import pids_in
from traceml_daemon.triage.causes import Cause, Tier, is_consequence
from traceml_daemon.triage.ends import End, first_end, only_worker, signal_of, task_ended_by
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.whose_error import is_agents

_EXIT_LINES: Final = frozenset({"bad_cli_args", "file_not_found", "import_error", "numerical_failure"})
"""Python, argparse and scripts say these in a line without a traceback, and exit."""
_SIGNALS: Final = {"host_oom_kill": 9, "bus_error_shm": 7, "segfault": 11, "illegal_instruction": 4}
_ABORT: Final = 6
_LAST_WORDS: Final = re.compile(r"what\(\):|\bby GPU node-\d|\bfault from GPU at 0x|\bHSA_STATUS_ERROR_")
"""Of an exception of C++ that nobody caught, or of a GPU's runtime: the process then aborts."""
_DEVICE: Final = re.compile(r"\bGPU (\d{1,4}) has a total capacity")
_OF_DEVICE: Final = re.compile(r"CUDA error|cuda error|Xid|ECC|cuDNN|CUBLAS|AcceleratorError")


def _is_a_ranks(cause: Cause) -> bool:
    """Whether a single rank did it, in a process that ended of it."""
    if cause.tier in (Tier.RENDEZVOUS, Tier.AGENT, Tier.EXTERNAL, Tier.FABRIC):
        return False
    if cause.raised is None:
        return cause.tier == Tier.CRASH or cause.category in _EXIT_LINES
    return not is_agents(cause.raised)


def _global_rank(local_rank: int, file: int, ends: list[End], seen: Observations) -> int | None:
    """On one node the local rank is the global one; else that file's own table may say it."""
    same = {end.rank for end in ends if end.local_rank == local_rank and end.reports[0].place.file == file}
    if len(same) == 1:
        return same.pop()
    if local_rank in seen.global_ranks.get(file, {}):
        return seen.global_ranks[file][local_rank]
    return None if seen.is_multinode else local_rank


def conclude_ranks(causes: list[Cause], ends: list[End], seen: Observations) -> None:
    """Give the causes without a rank of their own the one that the exits, labels or a single worker leave."""
    explained = {cause.rank for cause in causes if is_consequence(cause)} | {dog.rank for dog in seen.watchdogs}
    open_ends = [end for end in ends if end.rank is None or end.rank not in explained]
    nobodys = [cause for cause in causes if is_consequence(cause) and cause.rank is None and cause.raised is not None]
    lost_in = {cause.place.file for cause in nobodys} if seen.is_multinode else set()
    """An exit may belong to an error of a lost peer that names no rank, or its node's file has none."""
    has_agents = seen.wrappers or any(end.local_rank is not None for end in ends)
    times = Counter(cause.signature for cause in causes if not cause.is_attributed)
    for cause in causes:
        if cause.rank is not None or not _is_a_ranks(cause):
            continue
        raised = cause.raised
        if raised is not None and raised.label_rank is not None and not seen.is_multinode:
            cause.rank = raised.label_rank
        elif raised is not None and raised.speaker.local_rank is not None:
            cause.rank = _global_rank(raised.speaker.local_rank, cause.place.file, ends, seen)
        elif raised is not None and raised.speaker.task is not None and not has_agents:
            cause.rank = raised.speaker.task
        elif times[cause.signature] == 1 and not is_consequence(cause) and cause.place.file not in lost_in:
            own = [end for end in open_ends if not lost_in or end.reports[0].place.file == cause.place.file]
            if raised is None and cause.category == "numerical_failure":  # several ranks may have said it
                own = [end for end in own if any(report.is_sole for report in end.reports)]
            one = first_end(own) or _on_device(cause, own)
            cause.rank = one.rank if one is not None else only_worker(seen)
    for cause in causes:
        is_of_process = cause.tier in (Tier.RECORD, Tier.ORIGINAL, Tier.CRASH) or cause.category == "hang"
        if cause.rank is None and cause.raised is None and is_of_process:
            cause.rank = _of_line(cause, causes, ends, seen)
            cause.is_attributed = cause.rank is not None


def _of_line(cause: Cause, causes: list[Cause], ends: list[End], seen: Observations) -> int | None:
    """Of a line that nobody signed: the process that it names, else the only rank that failed of the same."""
    named = pids_in(cause.place.quote)
    number = _signal_of(cause)
    owners = [end for end in ends if end.pid in named and end.rank is not None]
    ranks = {end.rank for end in owners if signal_of(end.code) == number} or {end.rank for end in owners}
    raised = [other for other in causes if other.raised is not None and named & pids_in(other.raised.message)]
    ranks |= {other.rank for other in raised if other.rank is not None}
    ranks = ranks or _told(named, cause, seen)
    if len(ranks) == 1:
        return ranks.pop()
    same = {other.rank for other in causes if other.raised is not None and _is_same(cause, other)}
    if not same and number is not None and not ranks:
        same = {end.rank for end in ends if signal_of(end.code) == number and not end.is_by_agent}
    if not same and not ends and number is not None:
        return task_ended_by(number, seen)
    return same.pop() if len(same) == 1 else None


def _told(named: set[int], cause: Cause, seen: Observations) -> set[int | None]:
    """By the start lines of the job; who saw that ranks differ need not be the one that is different."""
    if cause.category == "collective_mismatch":
        return set()
    told = [seen.processes.rank_of(pid, num_workers=seen.num_workers, is_multinode=seen.is_multinode) for pid in named]
    return {rank for rank in told if rank is not None}


def _on_device(cause: Cause, ends: list[End]) -> End | None:
    """Of several that failed, the one whose device had no memory left: not told by device 0, which all can use."""
    device = _DEVICE.search(cause.raised.message) if cause.raised is not None else None
    number = int(device[1]) if device is not None else 0
    same = [end for end in ends if number and end.local_rank == number and end.code == 1]
    return same[0] if len(same) == 1 else None


def _signal_of(cause: Cause) -> int | None:
    """How a process ends of it, where that is told by the line."""
    if _LAST_WORDS.search(cause.place.quote) and cause.category != "collective_mismatch":
        return _ABORT
    return _SIGNALS.get(cause.category)


def _is_same(cause: Cause, other: Cause) -> bool:
    """Whether an exception is what that line or record led to."""
    if is_consequence(other):
        return False
    if cause.category == "gpu_hardware" and other.raised is not None:
        return _OF_DEVICE.search(f"{other.raised.type} {other.raised.message}") is not None
    return other.category == cause.category
