"""Exceptions that a job caught: work went on behind them, and what ended the job is something later. Pure."""

from __future__ import annotations

from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.ends import End


def without_survived(causes: list[Cause], ends: list[End]) -> list[Cause]:
    """Those behind which no work was done, or nothing else happened."""
    return [cause for cause in causes if not _is_survived(cause, causes, ends)]


def _is_survived(cause: Cause, causes: list[Cause], ends: list[End]) -> bool:
    went_on_at = cause.raised.went_on_at if cause.raised is not None else 0
    if not went_on_at:
        return False
    own = [end for end in ends if end.rank == cause.rank and not end.is_by_agent] if cause.rank is not None else []
    later = [
        other
        for other in causes
        if other.place.file == cause.place.file and other.place.line > went_on_at and not other.is_weak
    ]
    if any(other.tier != Tier.AGENT and (not own or other.rank == cause.rank) for other in later):
        return True
    return any(
        end.is_fatal and not end.is_by_agent and end.reports[0].place.file == cause.place.file for end in own or ends
    )
