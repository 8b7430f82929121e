"""The signs of the catalogue's files, for the triage. Blocks."""

from __future__ import annotations

import tomllib
from functools import cache
from typing import Final

from traceml_client.protocol.errors import BrokenInstall
from traceml_daemon.log_files.catalog_files import entry_files, read_text
from traceml_daemon.triage.signs import Sign, SignBook, build_book

_SIGNS: Final = "# What follows is read by the triage: the signs in log text."
_EXAMPLES: Final = "# --- examples"
"""Behind this line stand texts for tests, which no diagnosis has to read."""


@cache
def load_book() -> SignBook:
    """All signs. The parts for people and for tests are not parsed: that would take longer than a diagnosis.

    Raises:
        BrokenInstall: a file of the catalogue is damaged, or there are none.
    """
    signs: list[Sign] = []
    for category, path in entry_files().items():
        text = read_text(path).partition(_SIGNS)[2].partition(_EXAMPLES)[0]
        try:
            tables = tomllib.loads(text).get("signs", []) if "[[signs]]" in text else []
            signs += build_book({category: tables}).signs
        except ValueError as error:
            raise BrokenInstall(path, f"is damaged ({error})") from None
    return SignBook(tuple(signs))
