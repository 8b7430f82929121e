"""Exceptions that a job caught: work went on behind them, and what ended the job is something later. Pure."""

from __future__ import annotations

import signal

from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.ends import End, signal_of


def without_survived(causes: list[Cause], ends: list[End]) -> list[Cause]:
    """Those behind which no work was done, or nothing else happened; and that can have ended a rank."""
    return [cause for cause in causes if not _is_survived(cause, causes, ends) and not _is_logged(cause, ends)]


def _is_survived(cause: Cause, causes: list[Cause], ends: list[End]) -> bool:
    if not cause.went_on_at or cause.tier == Tier.RECORD:
        return False
    own = [end for end in ends if end.rank == cause.rank and not end.is_by_agent] if cause.rank is not None else []
    later = [one for one in causes if _is_behind(one, cause) and (not own or one.rank == cause.rank)]
    if cause.tier in (Tier.FABRIC, Tier.EXTERNAL):  # a link is retried, and a notice given, some time before the end
        return any(one.tier <= Tier.CRASH for one in later)
    fatal = [end for end in own or ends if end.is_fatal and not end.is_by_agent]
    return bool(later) or any(end.reports[0].place.file == cause.place.file for end in fatal)


def _is_logged(cause: Cause, ends: list[End]) -> bool:
    """Nobody signed it, and what was seen to end was killed: an exception that ends a rank ends it with a code."""
    if cause.raised is None or cause.is_attributed or cause.category != "python_exception":
        return False
    own = [end for end in ends if not end.is_by_agent]
    return bool(own) and all(signal_of(end.code) == signal.SIGKILL for end in own)


def _is_behind(one: Cause, cause: Cause) -> bool:
    is_later = one.place.file == cause.place.file and one.place.line > cause.went_on_at
    return is_later and not one.is_weak and one.tier != Tier.AGENT
