"""The failure catalogue that comes with the package, read from its files. Blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from traceml_daemon.report.form import Confidence, MissingFact
from traceml_daemon.triage.entry import FAMILIES, CatalogEntry, Endings, parse_endings, parse_entry

_TRIAGE: Final = Path(__file__).parents[1] / "triage"
_FOLDER: Final = _TRIAGE / "catalog"
NEXT: Final = "{next_stderr}"


def categories() -> list[str]:
    """The names of all entries, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_entry(category: str) -> CatalogEntry:
    """Raises BadEntry, and OSError where there is no such file; see `categories`."""
    return parse_entry((_FOLDER / f"{category}.toml").read_text(encoding="utf-8"))


def advice(
    category: str, confidence: Confidence, *, stderr: str, run: str = "RUN", next_run: str | None = None
) -> dict[str, Any]:
    """The fields of a failure report that the catalogue fills.

    `stderr`, `run`: quoted paths for its commands. `next_run`: how the next run is looked at, where a command does it.
    """
    entry = load_entry(category)
    fill = partial(fill_command, stderr=stderr, run=run)
    missing = entry.missing if confidence != "confirmed" else ()
    return {
        "category": category,
        "family": entry.family,
        "confidence": confidence,
        "next_step": entry.next_step,
        "command": fill(entry.command) or None,
        "verify_command": next_run if next_run and NEXT in entry.verify_command else fill(entry.verify_command) or None,
        "missing": tuple(MissingFact(one.fact, fill(one.command)) for one in missing),
    }


def fill_command(command: str, *, stderr: str = "STDERR_LOG", run: str = "RUN") -> str:
    return command.replace(NEXT, "NEXT_STDERR_LOG").replace("{stderr}", stderr).replace("{run}", run).strip()


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
    return parse_endings((_TRIAGE / "endings.toml").read_text(encoding="utf-8"))
