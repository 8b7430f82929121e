"""What follows from a verdict: which ranks are collateral and why, and where torchrun's table disagrees."""

from __future__ import annotations

from traceml_daemon.triage.causes import Tier, is_consequence
from traceml_daemon.triage.verdict import Findings, Verdict, places_of


def complete(verdict: Verdict, found: Findings) -> None:
    """Add exit, collateral ranks and torchrun's opinion."""
    verdict.first_returns = found.seen.first_returns
    end = next((end for end in found.ends if end.rank is not None and end.rank == verdict.rank), None)
    if end is not None:
        verdict.exit_code = end.code if verdict.exit_code is None else verdict.exit_code
        verdict.evidence += [place for place in places_of(end) if place not in verdict.evidence]
    if verdict.rank is not None or verdict.category not in ("ok", "insufficient_evidence"):
        _fill_collateral(verdict, found)
    _compare_with_torchrun(verdict, found)


def _fill_collateral(verdict: Verdict, found: Findings) -> None:
    reasons = verdict.collateral
    for end in found.ends:
        if end.rank is not None and end.is_by_agent:
            reasons[end.rank] = "sigkill_by_agent" if end.code == -9 else "sigterm_by_agent"
    for cause in found.causes:
        if is_consequence(cause) and cause.rank is not None:
            reasons[cause.rank] = "collective_timeout" if cause.tier == Tier.TIMEOUT else "peer_lost"
    for end in found.ends if verdict.rank is not None else ():
        if end.rank is not None and end.code == -6:
            reasons.setdefault(end.rank, "aborted_by_watchdog")
    if verdict.rank is not None:
        reasons.pop(verdict.rank, None)


def _compare_with_torchrun(verdict: Verdict, found: Findings) -> None:
    """torchrun of the rank's own node speaks, if it named that rank; else the first that named one."""
    roots = [end for end in found.ends if end.is_root and end.rank is not None]
    if not roots:
        return
    own = next((end for end in roots if end.rank == verdict.rank), roots[0])
    verdict.torchrun_rank = own.rank
    if verdict.rank is None or own.rank == verdict.rank:
        return
    has_raised = verdict.initiator is not None and verdict.initiator.raised is not None
    when = "raised" if has_raised else "ended"
    verdict.torchrun_why = f"it names the process that it saw end first; rank {verdict.rank} {when} earlier"
