"""The signs of the catalogue's files, for the triage. Blocks."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Final

from traceml_daemon.triage.signs import SignBook, build_book

_FOLDER: Final = Path(__file__).parents[1] / "triage" / "catalog"
_SIGNS: Final = "# What follows is read by the triage: the signs in log text."
_EXAMPLES: Final = "# --- examples"
"""Behind this line stand texts for tests, which no diagnosis has to read."""


@cache
def load_book() -> SignBook:
    """All signs. The parts for people and for tests are not parsed: that would take longer than a diagnosis."""
    tables = {}
    for path in sorted(_FOLDER.glob("*.toml")):
        text = path.read_text(encoding="utf-8").partition(_SIGNS)[2].partition(_EXAMPLES)[0]
        tables[path.stem] = tomllib.loads(text).get("signs", []) if "[[signs]]" in text else []
    return build_book(tables)
