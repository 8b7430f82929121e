"""The failure catalogue as one HTML file: no request, and a few lines of script for the search alone."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import jinja2

from traceml_daemon.log_files.catalog import fill_command
from traceml_daemon.triage.entry import FAMILIES, CatalogEntry, Endings

_TEMPLATES: Final = Path(__file__).parent / "templates"


class _EndingRow(NamedTuple):
    code: str
    """As torchrun, and as a shell writes it."""
    name: str
    meaning: str
    causes: tuple[CatalogEntry, ...]


def catalog_html(entries: Sequence[CatalogEntry], endings: Endings) -> str:
    """The whole page; all text is escaped by the template."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    families = [(FAMILIES[family], tuple(members)) for family, members in groupby(entries, key=lambda e: e.family)]
    endings_shown = [*_exit_rows(entries, endings), *_signal_rows(entries, endings)]
    return environment.get_template("catalog.html").render(
        families=families, endings=endings_shown, count=len(entries), fill=fill_command
    )


def _exit_rows(entries: Iterable[CatalogEntry], endings: Endings) -> list[_EndingRow]:
    """The code of an ordinary exception has too many causes to list."""
    rows = []
    for each in endings.exit_codes:
        causes = tuple(entry for entry in entries if each.number in entry.exit_codes) if each.number != 1 else ()
        rows.append(_EndingRow(str(each.number), "", each.meaning, causes))
    return rows


def _signal_rows(entries: Iterable[CatalogEntry], endings: Endings) -> list[_EndingRow]:
    rows = []
    for each in endings.signals:
        name = signal.Signals(each.number).name
        causes = tuple(entry for entry in entries if name in entry.signals)
        rows.append(_EndingRow(f"-{each.number}, {128 + each.number}", name, each.meaning, causes))
    return rows
