"""A rank's end in words, for headlines; and what makes two ends alike."""

from __future__ import annotations

import re
from typing import Final

from traceml_client.protocol.node import RankError
from traceml_daemon.report.symptoms import Symptom, short_type
from traceml_daemon.triage.own_source import wrapped

_FAULTHANDLER: Final = "Fatal Python error"


def who(symptom: Symptom) -> str:
    return f"rank {symptom.rank} (node {symptom.attempt.incarnation.node_index})"


def what(symptom: Symptom) -> str:
    """What it did, as the end of a sentence."""
    at = where(symptom)
    if symptom.error is not None:
        message = shorten(_first_line(symptom.error))
        first = wrapped(symptom.error.traceback)
        did = "was still handling" if symptom.is_handled else "raised"
        text = f"{did} {short_type(symptom.error)}" + (f": {message}" if message else "")
        if first is not None and not text.endswith(shorten(first)):  # not the same again, as a pool's worker raised it
            text = f"{text.rstrip('.:')}, from {shorten(first)}"
        return f"{text},{at}" if (message or first) and at else text + at
    said = shorten(symptom.reading.text) if symptom.reading and symptom.kind in ("original", "system") else None
    if symptom.signal is not None and symptom.left_by is None:
        said = None if said is not None and said.startswith(_FAULTHANDLER) else said
        return f"was killed by {symptom.signal}{at}" + (f", its last words: {said}" if said else "")
    if said is not None:
        return f"printed {said},{at}" if at else f"printed {said}"
    last_words = shorten(_first_line(symptom.left_by)) if symptom.left_by is not None else ""
    reason = " without an exception" if not last_words or last_words.isdigit() else f": {last_words}"
    return f"exited with code {symptom.exit_code}{reason}" + (f",{at}" if reason[0] == ":" and at else at)


def where(symptom: Symptom) -> str:
    if not symptom.step:
        return ""
    phase = "" if symptom.phase in (None, "residual") else f" ({symptom.phase})"
    return f" in step {symptom.step}{phase}"


def shorten(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def signature(symptom: Symptom) -> tuple[str, str, int | None]:
    """Equal for ranks that failed of the same: of one kind at one line; without it numbers are often the rank's own."""
    error, source = symptom.error, symptom.source
    if error is not None:
        text = f"{error.type} {source or re.sub(r'[0-9]+', '#', _first_line(error))}"
    else:
        text = re.sub(r"\d+", "#", symptom.reading.text) if symptom.reading is not None else ""
    return symptom.category, text, symptom.exit_code


def _first_line(error: RankError) -> str:
    """Of the message; one that only announces what follows, with the line after it."""
    first, _, rest = error.message.strip().partition("\n")
    second = rest.strip().partition("\n")[0]
    return f"{first} {second}" if first.endswith(":") and second else first
