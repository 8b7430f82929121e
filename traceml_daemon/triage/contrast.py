"""Which error-like lines did one rank alone print, and which of them did the last good run not print?

Lines are compared by their shapes: numbers, addresses and paths do not count. What stands out is worth a look and no
proof: it explains nothing by itself, and what a catalogue's sign takes for a consequence is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from traceml_daemon.triage.causes import Tier, tier_of
from traceml_daemon.triage.lines import MAX_PIECE_BYTES, OWN_PREFIX, Pieces, Speaker, attribute
from traceml_daemon.triage.observations import Place
from traceml_daemon.triage.quotes import quote_of
from traceml_daemon.triage.reader import Screen
from traceml_daemon.triage.signs import SignBook

MAX_SHAPES: Final = 4_096
"""Compared with each other; shapes that come later are passed over, which makes no claim about the others wrong."""
MAX_LINES: Final = 50_000
"""Error-like lines looked at; with more nothing is said, because nothing would be known of the rest."""
_GREETING_LINES: Final = 1_000
"""Of a log of several ranks: whoever speaks in these is heard, also without an error."""
_MAX_TEXT: Final = 400
WORDS: Final = (
    b"error", b"exception", b"fail", b"fatal", b"killed", b"abort", b"denied", b"refused", b"not found", b"cannot",
    b"unable", b"invalid", b"corrupt", b"mismatch", b"timeout", b"timed out", b"panic", b"overflow",
)  # fmt: skip
"""Lines with one of these are error-like."""
_ERROR_LIKE: Final = re.compile(b"|".join(WORDS))
_VARYING: Final = re.compile(
    r"(?:[A-Za-z]:)?(?:[/\\][\w.@%+-]+)+[/\\]?"  # a path
    r"|\b0[xX][0-9a-fA-F]+|\b(?=[a-fA-F]{0,36}\d)[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]{4,})*\b"  # an address, an id
    r"|\d+(?:[.,:]\d+)*(?:[eE][+-]?\d+)?"  # a number, an IP address with its port, a time
)
_GOOD_RUN: Final = -1
_FOLD: Final = bytes.maketrans(b"123456789", b"000000000")
_RETURN: Final = re.compile(rb"\r(?!\n)")
_CONSEQUENCES: Final = frozenset({Tier.PEER, Tier.TIMEOUT, Tier.EXTERNAL, Tier.KILL, Tier.AGENT, Tier.EXIT})
_NO_MESSAGE: Final = re.compile(r"  |\t|(?:The above|During handling of the above) exception")
"""The source lines of a traceback, and what stands between two."""
_EXCEPTION: Final = re.compile(r"[\w.]*(?:Error|Exception)\b|.{0,40}\b(?i:fatal|panic|abort)")


def shape_of(text: str) -> str:
    """The message without what varies between ranks and runs."""
    return " ".join(_VARYING.sub("#", text[:_MAX_TEXT]).split())


@dataclass(frozen=True, slots=True)
class Odd:
    """A line that stands out."""

    place: Place
    rank: int | None
    """The only one that printed it; null where several did."""


@dataclass(slots=True)
class _Shape:
    place: Place
    text: str
    ranks: set[int]
    """At most two: more make no difference."""
    is_in_good_run: bool = False


@dataclass(slots=True)
class Contrast:
    """What the ranks of one job printed, and then the last good run of that job."""

    screen: Screen | None = None
    """Of WORDS; worth its making where there is much to read."""
    heard: set[int] = field(default_factory=set)
    """The ranks whose streams were read, or that spoke."""
    num_lines: int = 0
    _shapes: dict[str, _Shape] = field(default_factory=dict)
    _has_good_run: bool = False

    def reader(self, file: int, rank: int | None) -> StreamReader:
        """Of the stream of this rank; null: lines belong to the ranks that their prefixes name."""
        if rank is not None:
            self.heard.add(rank)
        return StreamReader(self, file, rank)

    def good_run_reader(self) -> StreamReader:
        """Of any rank's stream."""
        self._has_good_run = True
        return StreamReader(self, _GOOD_RUN, 0)

    def note(self, rank: int, text: str, place: Place) -> None:
        self.num_lines += 1
        shape = shape_of(text)
        known = self._shapes.get(shape)
        if place.file == _GOOD_RUN:
            if known is not None:
                known.is_in_good_run = True
        elif known is None:
            if len(self._shapes) < MAX_SHAPES:
                self._shapes[shape] = _Shape(place, text, {rank})
        elif len(known.ranks) < 2:
            known.ranks.add(rank)

    def odd_lines(self, book: SignBook) -> list[Odd]:
        """The most telling first: of one rank, of another than rank 0 (which often prints alone), exceptions, early."""
        if self.num_lines > MAX_LINES:
            return []
        found = [shape for shape in self._shapes.values() if self._is_odd(shape) and not _is_consequence(shape, book)]
        found.sort(key=_rating)
        return [Odd(shape.place, min(shape.ranks) if self._is_of_one(shape) else None) for shape in found]

    def odd_rank(self, lines: Iterable[Odd]) -> int | None:
        """The one rank whose lines stand out; rank 0 only if the good run did not print them."""
        ranks = {line.rank for line in lines if line.rank is not None and (line.rank > 0 or self._has_good_run)}
        return ranks.pop() if len(ranks) == 1 else None

    def _is_odd(self, shape: _Shape) -> bool:
        return not shape.is_in_good_run and (self._has_good_run or self._is_of_one(shape))

    def _is_of_one(self, shape: _Shape) -> bool:
        return len(shape.ranks) == 1 and len(self.heard) > 1


class StreamReader:
    """Reads one stream in chunks; any cuts give the same."""

    __slots__ = ("_contrast", "_dull", "_file", "_pieces", "_rank", "first_return")

    def __init__(self, contrast: Contrast, file: int, rank: int | None) -> None:
        self._contrast, self._file, self._rank = contrast, file, rank
        self._pieces = Pieces()
        self._dull: set[bytes] = set()
        """Lines of this rank, digits apart, that are noted already."""
        self.first_return: int | None = None
        """The first line with a carriage return inside: from there on, readers count lines differently."""

    def feed(self, chunk: bytes) -> None:
        for number, block in self._pieces.feed(chunk):
            self._read(number, block)

    def finish(self) -> None:
        for number, block in self._pieces.finish():
            self._read(number, block)

    def _read(self, number: int, block: bytes) -> None:
        if self.first_return is None and (found := _RETURN.search(block)) is not None:
            self.first_return = number + block.count(b"\n", 0, found.start())
        position = 0
        for offset in self._offsets(number, block):
            if offset >= position and self._contrast.num_lines <= MAX_LINES:
                start = block.rfind(b"\n", position, offset) + 1 or position
                number += block.count(b"\n", position, start)
                end = block.find(b"\n", start)
                position = len(block) if end < 0 else end
                for piece in _pieces_of(block[start:position]):
                    self._read_piece(number, piece)

    def _offsets(self, number: int, block: bytes) -> Iterator[int]:
        """Of the greeting every line, then those that may be error-like."""
        start = 0
        while self._rank is None and number <= _GREETING_LINES and start < len(block):
            yield start
            start, number = (block.find(b"\n", start) + 1 or len(block)), number + 1
        screen = self._contrast.screen
        yield from screen(block) if screen else (found.start() for found in _ERROR_LIKE.finditer(block.lower()))

    def _read_piece(self, number: int, piece: bytes) -> None:
        is_error = _ERROR_LIKE.search(piece.lower()) is not None
        if (number > _GREETING_LINES and not is_error) or self._is_dull(piece):
            return
        line = attribute(number, piece)
        rank = self._rank if self._rank is not None else rank_of(line.speaker)
        if rank is None:
            return
        if self._file != _GOOD_RUN:
            self._contrast.heard.add(rank)
        is_message = not line.is_agents and not _NO_MESSAGE.match(line.text) and not line.text.startswith(OWN_PREFIX)
        if is_error and is_message:
            self._contrast.note(rank, line.text, Place(self._file, number, quote_of(line)))

    def _is_dull(self, piece: bytes) -> bool:
        """Whether this rank printed the same before; in a log of several ranks that is not told by a glance."""
        folded = piece.translate(_FOLD)
        if self._rank is None or folded in self._dull:
            return self._rank is not None
        if len(self._dull) < MAX_SHAPES:
            self._dull.add(folded)
        return False


def rank_of(speaker: Speaker) -> int | None:
    """Not by `[default0]:`, which counts on each node anew."""
    return speaker.rank if speaker.rank is not None else speaker.task


def _pieces_of(line: bytes) -> Iterator[bytes]:
    for start in range(0, len(line), MAX_PIECE_BYTES):
        yield from line[start : start + MAX_PIECE_BYTES].split(b"\r")


def _is_consequence(shape: _Shape, book: SignBook) -> bool:
    signs = book.search(shape.text.strip(), ("line", "error", "agent"))
    return any(tier_of(sign.category, is_record=sign.record) in _CONSEQUENCES for sign, _ in signs)


def _rating(shape: _Shape) -> tuple[bool, bool, bool, int, int]:
    place = shape.place
    is_exception = _EXCEPTION.match(shape.text) is not None
    return len(shape.ranks) > 1, shape.ranks == {0}, not is_exception, place.line, place.file
