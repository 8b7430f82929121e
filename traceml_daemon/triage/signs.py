"""The catalogue's signs: which words in a line speak of which category.

A sign is a table of the catalogue:

    pattern   regular expression, searched in the line without its prefixes; in an exception: in `Type: message`
    literal   words that every match contains, in lower case, or a list of such of which every match contains one; only
              lines with them are searched. May be left out where the pattern is plain text
    where     "line" (default): any line. "error": the message of an exception. "agent": the message of an exception of
              torchrun itself
    frame     regular expression that the traceback must show, as `path:line:function`
    states    true: such a line states the cause; false (default): it suggests it
    priority  which of two signs in one exception decides; 50 if left out
    unless    regular expression that must not be found in the same text
    support   true: explains an exception, exit or signal, and is no cause by itself
    record    true: written by the kernel, a scheduler or a device about a process

A named group `rank` of the pattern is the global rank that the sign speaks of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

_PLAIN: Final = re.compile(r"[\w \-'\",/<>=:;#@%!~`&]+")
_FIELDS: Final = frozenset(
    {"pattern", "literal", "where", "frame", "states", "priority", "unless", "support", "record"}
)
_WHERE: Final = frozenset({"line", "error", "agent"})


class BadSign(ValueError):
    """A sign of the catalogue that cannot be used."""


@dataclass(frozen=True)
class Sign:
    category: str
    pattern: str
    literals: tuple[str, ...]
    where: str = "line"
    frame: str | None = None
    states: bool = False
    priority: int = 50
    unless: str | None = None
    support: bool = False
    record: bool = False

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def _unless(self) -> re.Pattern[str] | None:
        return None if self.unless is None else re.compile(self.unless)

    @cached_property
    def _frame(self) -> re.Pattern[str] | None:
        return None if self.frame is None else re.compile(self.frame)

    def search(self, text: str, frames: str) -> re.Match[str] | None:
        found = self.compiled.search(text)
        if found is None or (self._unless is not None and self._unless.search(text)):
            return None
        return found if self._frame is None or self._frame.search(frames) else None


def parse_sign(category: str, table: Mapping[str, Any]) -> Sign:
    """Raises BadSign."""
    unknown = table.keys() - _FIELDS
    if unknown or not isinstance(table.get("pattern"), str):
        raise BadSign(f"{category}: a sign needs a pattern and has no field {', '.join(sorted(unknown)) or 'else'}")
    pattern = str(table["pattern"])
    given = table.get("literal", pattern.lower() if _PLAIN.fullmatch(pattern) else ())
    literals = (given,) if isinstance(given, str) else tuple(given)
    if not literals or any(len(literal) < 4 or literal != literal.lower() for literal in literals):
        raise BadSign(f"{category}: the sign {pattern!r} needs a literal of four or more lower-case characters")
    where = str(table.get("where", "line"))
    if where not in _WHERE:
        raise BadSign(f"{category}: where = {where!r} is none of {', '.join(sorted(_WHERE))}")
    return Sign(
        category=category,
        pattern=pattern,
        literals=literals,
        where=where,
        frame=table.get("frame"),
        states=bool(table.get("states", False)),
        priority=int(table.get("priority", 50)),
        unless=table.get("unless"),
        support=bool(table.get("support", False)),
        record=bool(table.get("record", False)),
    )


@dataclass(frozen=True)
class SignBook:
    """All signs, found by their literals."""

    signs: tuple[Sign, ...]
    _by_literal: dict[str, list[Sign]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for sign in self.signs:
            for literal in sign.literals:
                self._by_literal.setdefault(literal, []).append(sign)

    @cached_property
    def line_literals(self) -> tuple[str, ...]:
        """Of the signs that may stand in any line; the others are looked for in exceptions only."""
        return tuple({literal: None for sign in self.signs if sign.where == "line" for literal in sign.literals})

    def search(self, text: str, wheres: Iterable[str], frames: str = "") -> list[tuple[Sign, re.Match[str]]]:
        """Every sign that this text shows and that may stand there; `frames`: of the traceback before it."""
        lowered, wanted = text.lower(), frozenset(wheres)
        found: dict[int, tuple[Sign, re.Match[str]]] = {}
        for literal, signs in self._by_literal.items():
            if literal not in lowered:
                continue
            for sign in signs:
                match = sign.search(text, frames) if sign.where in wanted and id(sign) not in found else None
                if match is not None:
                    found[id(sign)] = sign, match
        return list(found.values())


def build_book(tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> SignBook:
    """`tables`: the signs of each category. Raises BadSign."""
    return SignBook(tuple(parse_sign(category, table) for category, signs in tables.items() for table in signs))
