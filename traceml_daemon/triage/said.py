"""One rank's own words: the failure that its stream or its recorded exception shows, without any other rank's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from traceml_daemon.triage.causes import Cause, Tier, causes_of, classify, tier_of
from traceml_daemon.triage.lines import Speaker
from traceml_daemon.triage.observations import Hit, Observations, Place, Raised
from traceml_daemon.triage.own_source import (
    RAISED_BY_SCRIPTS,
    Source,
    frames_of,
    innermost,
    source_in,
    source_of,
    wrapped,
)
from traceml_daemon.triage.signs import SignBook
from traceml_daemon.triage.survived import without_survived
from traceml_daemon.triage.tracebacks import FATAL
from traceml_daemon.triage.waiting import collective_of

Kind = Literal["original", "system", "timeout", "peer_lost", "terminated"]

_KINDS: Final[dict[Tier, Kind]] = {
    Tier.TIMEOUT: "timeout",
    Tier.PEER: "peer_lost",
    Tier.SYSTEM: "system",
    Tier.EXTERNAL: "terminated",
}
_FROM_TORCH: Final = frozenset({"DistBackendError", "DistNetworkError"})
"""What torch raises where a peer is lost, whatever else the message says."""
_MAX_TEXT: Final = 160


@dataclass(frozen=True, slots=True)
class Said:
    kind: Kind
    cause: Cause
    text: str
    collective: str | None = None
    source: Source | None = None


def strongest(seen: Observations) -> Said | None:
    """The failure that matters of one rank's streams: the first original one, else what it suffered."""
    causes = [cause for cause in causes_of(seen) if cause.tier != Tier.AGENT]
    lasting = without_survived([cause for cause in causes if not cause.is_weak] or causes, [])
    originals = [cause for cause in lasting if cause.tier not in _KINDS and cause.tier != Tier.CRASH]
    crashes = [cause for cause in lasting if cause.tier == Tier.CRASH]
    rest = sorted((cause for cause in lasting if cause.tier in _KINDS), key=lambda cause: (cause.tier, cause.order))
    first = next(iter([*originals, *rest, *crashes]), None)
    if first is None or first.raised is not None:
        return None if first is None else _said(first)
    stacks = next((one.frames for one in seen.raised if one.type == FATAL), ())  # of the signal that ended it
    return replace(_said(first), collective=collective_of(stacks), source=innermost(stacks[::-1]))


def of_exception(kind: str, message: str, traceback: str, book: SignBook) -> Said:
    """What a recorded exception says by its type, its message and its frames."""
    frames = frames_of(traceback)
    nobody, nowhere = Speaker(), Place(0, 0, "")
    raised = Raised(nowhere, nobody, None, kind, message, frames, None, has_header=True)
    for number, line in enumerate(message.splitlines() or [""]):
        text = f"{kind}: {line}" if number == 0 else line
        for sign, _ in book.search(text.strip(), ("line", "error"), "\n".join(frames)):
            raised.hits.append(
                Hit(sign.category, nowhere, nobody, None, sign.states, sign.priority, None, sign.support, sign.record)
            )
    is_own = innermost(frames[-1:]) is not None and "\nDuring handling" not in traceback
    if is_own and raised.short_type in RAISED_BY_SCRIPTS:
        raised.hits = [hit for hit in raised.hits if tier_of(hit.category, is_record=hit.is_record) not in _KINDS]
    cause = classify(raised)
    spoken = _said(cause)
    if cause.category == "python_exception" and raised.short_type in _FROM_TORCH:
        spoken = replace(spoken, kind="peer_lost")
    first = wrapped(traceback)
    text = spoken.text if first is None else f"{spoken.text}, from {first}"
    return replace(spoken, text=text, source=source_in(traceback))


def _said(cause: Cause) -> Said:
    kind = _KINDS.get(cause.tier, "original")
    raised = cause.raised
    text = _text(raised) if raised is not None else cause.place.quote
    if raised is None:
        return Said(kind, cause, text[:_MAX_TEXT])
    return Said(kind, cause, text[:_MAX_TEXT], collective_of(raised.frames), source_of(raised))


def _text(raised: Raised) -> str:
    first = raised.message.strip().partition("\n")[0]
    return f"{raised.short_type}: {first}" if first else raised.short_type
