"""Errors that the job survived: caught, retried, or recovered by a restart. Its log then ends well."""

from __future__ import annotations

from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.observations import GoodEnd, Place
from traceml_daemon.triage.verdict import Findings, Verdict


def has_recovered(found: Findings) -> Verdict | None:
    """The verdict `ok`, where every error is followed by work and by a good end in the same file.

    A test suite ends well with all that its tests printed. A batch script prints that it is done after a failure too:
    then a launcher has reported the failure, and only a restart after it makes it good.
    """
    ends = {end.place.file: end for end in found.seen.good_ends}
    troubles = _troubles(found)
    if not ends or not all(place.file in ends and _is_before(place, ends[place.file]) for place in troubles):
        return None
    reports = [place for place in _reports(found) if not ends[place.file].is_of_tests]
    if not all(_is_restarted(place, found) for place in reports):
        return None
    return Verdict("ok", "likely", evidence=[end.place for end in found.seen.good_ends[:2]])


def _troubles(found: Findings) -> list[Place]:
    seen = found.seen
    places = (
        [cause.place for cause in found.causes if not _is_farewell(cause, found)]
        + seen.suspects
        + [dog.place for dog in seen.watchdogs]
    )
    return places + _reports(found)


def _is_farewell(cause: Cause, found: Findings) -> bool:
    """A peer that was lost while the job came to its good end: it was ready before."""
    end = next((end for end in found.seen.good_ends if end.place.file == cause.place.file), None)
    return cause.tier == Tier.PEER and cause.raised is None and end is not None and cause.place.line < end.place.line


def _reports(found: Findings) -> list[Place]:
    """What launchers said of failures."""
    seen = found.seen
    return [one.place for one in seen.exits] + [one.place for one in seen.signals] + seen.wrappers


def _is_before(place: Place, end: GoodEnd) -> bool:
    """With work in between, which what a script prints at its end is not."""
    if place.line == end.place.line:
        return True
    return place.line < (end.place.line if end.is_sure else end.last_progress)


def _is_restarted(place: Place, found: Findings) -> bool:
    return any(again.file == place.file and again.line >= place.line for again in found.seen.restarts)
