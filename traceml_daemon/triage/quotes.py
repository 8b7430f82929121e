"""What is shown of a line: as it stands in the file, and no longer than a reader wants. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from traceml_daemon.triage.lines import Line
from traceml_daemon.triage.observations import Place

MAX_QUOTE: Final = 400
_BEFORE: Final = 100
"""Shown of what stands before the words that decide."""


def quote_of(line: Line) -> str:
    """The line shortened to what can be shown; without colours if it had some."""
    return _shown(line)[:MAX_QUOTE].rstrip("\ufffd ")


def place_at(place: Place, line: Line, found: re.Match[str]) -> Place:
    """The place with these words in its quote, where they stand too far back in a long line."""
    words = found[0].strip()
    if words in place.quote:
        return place
    text = _shown(line)
    start = text.find(words)
    if start < 0:
        return place
    begin = max(0, start - _BEFORE, start + len(words) - MAX_QUOTE)
    return replace(place, quote=text[begin : begin + MAX_QUOTE].strip("\ufffd "))


def _shown(line: Line) -> str:
    text = line.raw.strip("\r\n\0 \t\ufffd")
    if "\x1b" in text or "\0" in text:
        pieces = (piece.strip() for piece in re.split(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00\x1b]", text))
        text = max(pieces, key=lambda piece: (piece in line.text or line.text in piece, len(piece)))
    return text
