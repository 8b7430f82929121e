"""A verdict in a sentence: who failed first, and of what."""

from __future__ import annotations

import re
from typing import Final

from traceml_daemon.triage.ends import signal_of
from traceml_daemon.triage.verdict import Verdict
from traceml_daemon.triage.windows import described, is_of_windows

_MAX_WORDS: Final = 160
SIGNAL_NAMES: Final = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM",
}  # fmt: skip
_WITHOUT_RANK: Final = {
    "ok": "no failure in these logs",
    "insufficient_evidence": "these logs do not hold the cause",
    "collateral_only": "every error in these logs is the consequence of another one, which is not in them",
    "collective_timeout": "ranks waited in vain for a collective; what kept the others is not in these logs",
    "collective_mismatch": "ranks ran different collectives, or one with different sizes",
    "sigterm_unattributed": "the job was told to end by SIGTERM; who sent it is not shown",
    "hangup": "the job ended because its terminal or session was closed (SIGHUP)",
    "interrupted": "somebody interrupted the job (SIGINT)",
    "preempted_or_cancelled": "the scheduler or platform ended the job",
    "rendezvous_failed": "the nodes or ranks could not meet",
    "agent_failure": "torchrun itself failed, and no worker did before",
    "sigkill_unattributed": "a worker was killed by SIGKILL; who sent it is not shown",
}


def headline(verdict: Verdict) -> str:
    """Without a full stop at the end."""
    cause, rank = verdict.initiator, verdict.rank
    who = f"rank {rank}" if rank is not None else None
    if verdict.note:
        return verdict.note
    if cause is not None and cause.raised is not None:
        kind = cause.raised.short_type
        what = f"{kind}: {_short(cause.raised.message)}" if cause.raised.message else kind
        if who is not None:
            return f"{who} raised {what}"
        alike = f"{verdict.num_alike} ranks or lines alike" if verdict.num_alike > 1 else "a process that names no rank"
        return f"{alike} raised {what}"
    number = signal_of(verdict.exit_code) if verdict.exit_code is not None else 0
    if who is not None and number:
        return f"{who} was ended by {_ending(verdict.exit_code or 0, number)}"
    if who is not None and verdict.exit_code is not None and cause is None:
        return f"{who} exited with code {verdict.exit_code} and its own words are not in these logs"
    if cause is None and verdict.category in _WITHOUT_RANK:
        return _WITHOUT_RANK[verdict.category] + _suspects(verdict)
    quote = _short(verdict.evidence[0].quote) if verdict.evidence else verdict.category
    return f"{who or 'no rank is named'}: {quote}"


def _ending(code: int, number: int) -> str:
    return described(code) if is_of_windows(code) else SIGNAL_NAMES.get(number, f"signal {number}")


def _suspects(verdict: Verdict) -> str:
    if not verdict.suspects:
        return ""
    ranks = ", ".join(str(rank) for rank in verdict.suspects[:8])
    return f"; not heard of: rank{'s' if len(verdict.suspects) > 1 else ''} {ranks}"


def _short(text: str) -> str:
    words = re.sub(r"[\x00-\x1f\x7f]+", " ", text.strip().partition("\n")[0]).strip()
    return words if len(words) <= _MAX_WORDS else words[: _MAX_WORDS - 3] + "..."
