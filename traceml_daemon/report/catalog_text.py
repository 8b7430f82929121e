"""Answers of the failure catalogue as lines for a terminal. A command is never broken, so that it can be pasted."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from traceml_daemon.log_files.catalog import fill_command
from traceml_daemon.triage.entry import FAMILIES, CatalogEntry

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
    yield from _section("Verify the fix", _verification(entry))
    yield from _section("Where the cause is not certain, this settles it", _facts(entry, width))
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


def _verification(entry: CatalogEntry) -> Iterator[Line]:
    yield _command(entry.verify_command)
    if entry.verify is not None:
        yield _command("traceml verify RUN")


def _facts(entry: CatalogEntry, width: int) -> Iterator[Line]:
    for fact in entry.missing:
        yield from _items([fact.fact], width)
        yield _command(fact.command)


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
