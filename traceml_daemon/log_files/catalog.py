"""The failure catalogue that comes with the package, read from its files. Blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from traceml_daemon.triage.entry import FAMILIES, CatalogEntry, Endings, parse_endings, parse_entry

_TRIAGE: Final = Path(__file__).parents[1] / "triage"
_FOLDER: Final = _TRIAGE / "catalog"


def categories() -> list[str]:
    """The names of all entries, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_entry(category: str) -> CatalogEntry:
    """Raises BadEntry, and OSError where there is no such file; see `categories`."""
    return parse_entry((_FOLDER / f"{category}.toml").read_text())


@cache
def load_catalog() -> Mapping[str, CatalogEntry]:
    """All entries by category, family by family; read once in a process.

    Raises:
        BadEntry: see `load_entry`.
    """
    order = list(FAMILIES)
    entries = sorted(map(load_entry, categories()), key=lambda entry: (order.index(entry.family), entry.category))
    return {entry.category: entry for entry in entries}


def load_endings() -> Endings:
    """Raises BadEntry."""
    return parse_endings((_TRIAGE / "endings.toml").read_text())
