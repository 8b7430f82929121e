"""The failure catalogue: answers as lines for a terminal, and all of it as one HTML file.

A command is never broken, so that it can be pasted. The page makes no request and has a few lines of script for the
search alone.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, NamedTuple

from traceml_daemon.log_files.catalog import fill_command
from traceml_daemon.triage.entry import FAMILIES, CatalogEntry, Endings

Style = Literal["title", "heading", "text", "command", "muted"]


class Line(NamedTuple):
    text: str
    style: Style = "text"


def entry_lines(entry: CatalogEntry, width: int) -> Iterator[Line]:
    """The whole entry."""
    yield Line(f"{entry.category}: {entry.title}", "title")
    yield Line(f"family {entry.family}", "muted")
    yield from _section("Next step", [*_prose(entry.next_step, width), _command(entry.command)])
    yield from _section("Symptoms", _items(entry.symptoms, width))
    yield from _section("Cause", _prose(entry.cause, width))
    yield from _section("Why the obvious reading is wrong", _prose(entry.naive_reading, width))
    checks = [entry.verify_command, *(["traceml verify RUN"] if entry.verify is not None else [])]
    yield from _section("Verify the fix", map(_command, checks))
    facts = (line for fact in entry.missing for line in (*_items([fact.fact], width), _command(fact.command)))
    yield from _section("Where the cause is not certain, this settles it", facts)
    yield from _section("Prevention", _prose(entry.prevention, width))
    yield from _section("Example", [Line(f"  {line}", "muted") for line in entry.example.splitlines()])
    yield from _section("Line to alert on", [Line(f"  {entry.alert_line}", "muted")])
    yield from _section("Related", _prose(", ".join(entry.related), width))
    yield from _section("Mistaken for", _prose(", ".join(entry.mistaken_for), width))
    yield from _section("Seen under", _prose(", ".join(entry.launchers), width))
    yield from _section("References", [Line(f"  {url}") for url in entry.references])


def ending_lines(title: str, meaning: str, causes: Iterable[CatalogEntry], width: int) -> Iterator[Line]:
    """An exit code or a signal, and the causes that end so."""
    yield Line(title, "title")
    yield from _prose(meaning, width)
    causes = list(causes)
    if causes:
        yield from _section("Causes that end so", _names(causes, width))
        yield Line("")
        yield Line("traceml explain CATEGORY shows one in full", "muted")


def listing_lines(title: str, entries: Iterable[CatalogEntry], width: int) -> Iterator[Line]:
    """Entries family by family, as they come."""
    yield Line(title, "title")
    for family, members in groupby(entries, key=lambda entry: entry.family):
        yield from _section(FAMILIES[family], _names(list(members), width))
    yield Line("")
    yield Line("traceml explain CATEGORY | exit CODE | signal NAME shows one in full", "muted")


def _names(entries: list[CatalogEntry], width: int) -> Iterator[Line]:
    column = max(len(entry.category) for entry in entries)
    for entry in entries:
        yield from map(Line, _wrapped(f"{entry.category:<{column}}  {entry.title}", width, hanging=column + 4))


def _section(heading: str, lines: Iterable[Line]) -> Iterator[Line]:
    yield Line("")
    yield Line(heading, "heading")
    yield from lines


def _command(command: str) -> Line:
    return Line(f"  $ {fill_command(command)}", "command")


def _prose(text: str, width: int) -> list[Line]:
    return [Line(line) for line in _wrapped(text, width)]


def _items(texts: Iterable[str], width: int) -> list[Line]:
    return [Line(line) for text in texts for line in _wrapped(f"- {text}", width, hanging=4)]


def _wrapped(text: str, width: int, *, hanging: int = 2) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent="  ",
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


_TEMPLATES: Final = Path(__file__).parent / "templates"


class _EndingRow(NamedTuple):
    code: str
    """As torchrun, and as a shell writes it."""
    name: str
    meaning: str
    causes: tuple[CatalogEntry, ...]


def catalog_html(entries: Sequence[CatalogEntry], endings: Endings) -> str:
    """The whole page; all text is escaped by the template."""
    import jinja2

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
