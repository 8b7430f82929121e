"""The failure catalogue that comes with the package, read from its files. Blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Final

from traceml_client.protocol.errors import BrokenInstall
from traceml_daemon.log_files.catalog_files import ENDINGS_FILE, entry_file, entry_files, read_text
from traceml_daemon.report.form import Confidence, MissingFact
from traceml_daemon.triage.entry import FAMILIES, BadEntry, CatalogEntry, Endings, parse_endings, parse_entry

NEXT: Final = "{next_stderr}"


def categories() -> list[str]:
    """The names of all entries, sorted. Raises BrokenInstall."""
    return list(entry_files())


def load_entry(category: str) -> CatalogEntry:
    """Raises BrokenInstall."""
    path = entry_file(category)
    try:
        return parse_entry(read_text(path))
    except BadEntry as error:
        raise BrokenInstall(path, f"is damaged ({error})") from None


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
        BrokenInstall: see `load_entry`.
    """
    order = list(FAMILIES)
    entries = sorted(map(load_entry, categories()), key=lambda entry: (order.index(entry.family), entry.category))
    return {entry.category: entry for entry in entries}


def load_endings() -> Endings:
    """Raises BrokenInstall."""
    try:
        return parse_endings(read_text(ENDINGS_FILE))
    except BadEntry as error:
        raise BrokenInstall(ENDINGS_FILE, f"is damaged ({error})") from None
