"""The failure catalogue that comes with the package, read from its files. Blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from traceml_daemon.triage.entry import FAMILIES, CatalogEntry, parse_entry

_TRIAGE: Final = Path(__file__).parent / "triage"
_FOLDER: Final = _TRIAGE / "catalog"


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an exit code or a signal says by itself."""

    number: int
    meaning: str


class Endings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exit_codes: tuple[Ending, ...]
    signals: tuple[Ending, ...]


def categories() -> list[str]:
    """The names of all entries, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_entry(category: str) -> CatalogEntry:
    """Raises BadEntry, and OSError where there is no such file; see `categories`."""
    return parse_entry((_FOLDER / f"{category}.toml").read_text())


def load_catalog() -> dict[str, CatalogEntry]:
    """All entries by category, family by family."""
    order = list(FAMILIES)
    entries = sorted(map(load_entry, categories()), key=lambda entry: (order.index(entry.family), entry.category))
    return {entry.category: entry for entry in entries}


def load_endings() -> Endings:
    return msgspec.toml.decode((_TRIAGE / "endings.toml").read_text(), type=Endings)
