"""A failure in a few lines: for the terminal's end, and in one sentence for the manifest."""

from __future__ import annotations

from typing import Final

from traceml_daemon.report.attempts import ranks_text
from traceml_daemon.report.form import FailureReport

MAX_LINES: Final = 6
_REASONS: Final = {
    "peer_lost": "lost a peer",
    "collective_timeout": "waited in vain for a collective",
    "sigterm_by_agent": "ended by SIGTERM",
    "sigkill_by_agent": "ended by SIGKILL",
    "aborted_by_watchdog": "aborted",
}


def failure_lines(report: FailureReport) -> tuple[str, ...]:
    """Who failed first and why, who is collateral, the next step: at most six lines without a prefix."""
    lines = [f"{report.summary[:1].upper()}{report.summary[1:]}", f"Cause: {_cause(report)}"]
    if report.collateral:
        lines.append(f"Collateral: {collateral_text(report)}")
    if report.torchrun.agrees is False:
        lines.append(f"torchrun names rank {report.torchrun.root_cause_rank}: {report.torchrun.why}")
    lines.append(f"Next: {report.next_step}")
    if report.command is not None:
        lines.append(f"  $ {report.command}")
    return tuple(line.replace("\n", " ") for line in lines[:MAX_LINES])


def failure_sentence(report: FailureReport) -> str:
    """For `training.failure_sentence` of the manifest."""
    return f"{report.summary} ({_cause(report)})"


def collateral_text(report: FailureReport) -> str:
    """`ranks 0-1 lost a peer; rank 3 ended by SIGTERM`: grouped by reason."""
    by_reason: dict[str, list[int]] = {}
    for collateral in report.collateral:
        by_reason.setdefault(collateral.reason, []).append(collateral.rank)
    return "; ".join(f"{ranks_text(ranks)} {_REASONS.get(reason, reason)}" for reason, ranks in by_reason.items())


def _cause(report: FailureReport) -> str:
    return f"{report.category}, confidence {report.confidence}"
