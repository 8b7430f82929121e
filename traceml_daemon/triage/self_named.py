"""Whose an unsigned exception is where the script wrote its own rank into the message. Pure."""

from __future__ import annotations

import re
from typing import Final

from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.own_source import innermost

_NUMBER: Final = r"(?:global[ _]?)?rank[ =:#]{0,2}(\d{1,6})"
_SELF: Final = re.compile(
    rf"(?i)^\W?{_NUMBER}\b\]?(?:[:,]| -|(?<=\]) | (?:had|has|got|hit|raised|failed|crashed|found|saw)\b)"
    rf"|\b(?:on|at|in) {_NUMBER}(?: (?:at|in|on|of) (?:step|epoch|iteration|batch)\b.*)?\W*$"
    rf"|[(\[]{_NUMBER}[)\]]\W*$"
)
_OF_OTHERS: Final = re.compile(
    r"(?i)\b(?:mismatch\w*|differ\w*|lost|dead|died|missing|missed|absent|wait\w*|timed?[ -]?out|heartbeats?|respon\w+"
    r"|repl(?:y|ied)|receiv\w+|reach\w*|connect\w*|expect\w*|join\w*|peers?|others?|remote|worker|from|between|than|vs"
    r"|unequal|inconsistent|disagree\w*)\b"
)
_RANKS: Final = re.compile(r"(?i)rank\w*")


def name_by_message(causes: list[Cause], num_workers: int) -> None:
    """Only where a single exception of the script's own code is unsigned, and says nothing that a peer would."""
    unsigned = [cause for cause in causes if cause.raised is not None and cause.rank is None]
    originals = [cause for cause in unsigned if cause.tier == Tier.ORIGINAL]
    if len(originals) != 1 or any(cause.rank is not None for cause in causes if cause.tier == Tier.ORIGINAL):
        return
    rank = _own_rank(originals[0])
    if rank is not None and (not num_workers or rank < num_workers):
        originals[0].rank, originals[0].is_named_by_message = rank, True


def _own_rank(cause: Cause) -> int | None:
    raised = cause.raised
    if raised is None or innermost(raised.frames[-1:]) is None:
        return None
    message = raised.message.partition("\n")[0].strip()
    found = _SELF.search(message)
    if found is None or _OF_OTHERS.search(message) or len(_RANKS.findall(message)) != 1:
        return None
    return int(next(number for number in found.groups() if number is not None))
