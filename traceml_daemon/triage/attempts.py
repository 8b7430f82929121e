"""Restarts in one log: what was seen before the last one belongs to an earlier attempt."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from traceml_daemon.triage.causes import is_wrapper
from traceml_daemon.triage.leftovers import is_leftover
from traceml_daemon.triage.observations import Observations, Place, Raised

STOPS: Final = frozenset({"preempted_or_cancelled", "sigterm_unattributed", "hang"})
"""Records of an end that is over once a job goes on; those of a kernel may stand anywhere in a file."""


def drop_earlier_attempts(seen: Observations) -> None:
    """Keep what the last attempt with errors of its own shows; a failure that a restart recovered stays.

    torchrun says that it restarts only at level INFO; without that, a second `failed (...)` of the same agent tells.
    """
    for file, lines in _boundaries(seen).items():
        for line in sorted(set(lines), reverse=True):
            if _is_spoiled(seen, file, line):
                _forget(seen, file, line, is_kept_before=True)
        last = max((line for line in lines if _has_errors_after(seen, file, line)), default=0)
        if last:
            _forget(seen, file, last)


def _boundaries(seen: Observations) -> dict[int, list[int]]:
    """By file, the lines that end an attempt."""
    found: dict[int, list[int]] = defaultdict(list)
    for place in seen.restarts:
        found[place.file].append(place.line)
    failures: dict[tuple[int, int | None, str | None], dict[int | None, int]] = defaultdict(dict)
    for one in seen.exits:
        file, agent_pid, _, source = one.agent
        if one.source == "agent" and (agent_pid is not None or _has_one_agent(seen, file)):
            own = failures[file, agent_pid, source]
            if one.pid is not None or not own:  # torchrun tells of one failure several times
                own.setdefault(one.pid, one.place.line)
    for (file, _, _), lines in failures.items():
        found[file] += [*lines.values()][:-1]
    return found


def _has_one_agent(seen: Observations, file: int) -> bool:
    """Where torchrun's lines do not say which process wrote them."""
    exits = [one for one in seen.exits if one.place.file == file]
    tasks = {one.agent[2] for one in exits}
    return len(tasks) == 1 and sum(one.source == "table" and one.is_root for one in exits) == 1


def _has_errors_after(seen: Observations, file: int, line: int) -> bool:
    places = [one.place for one in seen.raised] + [one.place for one in seen.exits] + [one.place for one in seen.hits]
    return any(place.file == file and place.line > line for place in places)


def _is_spoiled(seen: Observations, file: int, line: int) -> bool:
    """Whether the attempt behind this line did not come about, or failed only of what the one before it had left."""
    later = [one for one in seen.raised if one.place.file == file and one.place.line > line and not is_wrapper(one)]
    has_failed = any(one.place.file == file and one.place.line <= line for one in seen.raised)
    return bool(later) and all(is_leftover(one) or (has_failed and _is_of_restart(one)) for one in later)


def _is_of_restart(raised: Raised) -> bool:
    """Raised by torchrun while it started its workers anew, because of a failure before."""
    return any(frame.endswith((":_restart_workers", ":next_rendezvous")) for frame in raised.frames)


def _forget(seen: Observations, file: int, line: int, *, is_kept_before: bool = False) -> None:
    def is_kept(place: Place) -> bool:
        return place.file != file or (place.line <= line if is_kept_before else place.line > line)

    seen.raised = [one for one in seen.raised if is_kept(one.place)]
    seen.exits = [one for one in seen.exits if is_kept(one.place)]
    seen.hits = [one for one in seen.hits if is_kept(one.place) or (one.is_record and one.category not in STOPS)]
    seen.signals = [one for one in seen.signals if is_kept(one.place)]
    seen.watchdogs = [one for one in seen.watchdogs if is_kept(one.place)]
