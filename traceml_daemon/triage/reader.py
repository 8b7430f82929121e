"""Reads one log: which lines are worth a look, and what each of them says. Its memory does not grow with the log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from traceml_daemon.triage import processes, torchrun_lines
from traceml_daemon.triage.aftermath import Aftermath
from traceml_daemon.triage.endings import good_end, is_suspect, last_progress
from traceml_daemon.triage.foreign import ForeignPrefixes
from traceml_daemon.triage.laggards import LITERALS, ProgressRecords
from traceml_daemon.triage.lines import MAX_PIECE_BYTES, OWN_PREFIX, Line, Pieces, Speaker, attribute
from traceml_daemon.triage.observations import Hit, Observations, Place, Raised
from traceml_daemon.triage.quotes import place_at, quote_of
from traceml_daemon.triage.signs import Sign, SignBook
from traceml_daemon.triage.tables import Table
from traceml_daemon.triage.torchrun_lines import TorchrunLines
from traceml_daemon.triage.tracebacks import Tracebacks, kind_of
from traceml_daemon.triage.watchdogs import rank_in_group, watchdog_of
from traceml_daemon.triage.whose_error import is_agents, is_own_error

_MAX_SHAPES: Final = 4_096
_FOLD: Final = bytes.maketrans(b"123456789", b"000000000")
_MAX_ALIKE: Final = 4
"""Kept of hits and exceptions that one speaker repeats: the first ones."""
_MAX_RECORDS: Final = 64
"""A kernel's log may tell of other processes first."""
_MAX_RAISED: Final = 5_000
_MAX_HITS: Final = 20_000
_MAX_WATCHDOGS: Final = 20_000
_MAX_SUSPECTS: Final = 20
_MAX_TAIL: Final = 4_000
_MAX_TOLD: Final = 10_000
_MAX_TOLD_BYTES: Final = 1_000

_STRUCTURAL: Final = (
    "traceback (most", '  file "', "error", "exception", "interrupt", "failed", "failure", "fatal", "killed", "abort",
    "\u2502 /", "watchdog", "exit status", "notfound", *LITERALS, *torchrun_lines.LITERALS,
)  # fmt: skip
_RETURN: Final = re.compile(rb"\r(?!\n)")
Screen = Callable[[bytes], Iterator[int]]
"""Offsets of a block, ascending, such that every line with one of the words holds one; others may be among them."""


class LogReader:
    """Feed it the bytes of one file; it adds to the observations of all files."""

    def __init__(
        self, file: int, book: SignBook, seen: Observations, *, screen: Screen | None = None, rank: int | None = None
    ) -> None:
        """`rank`: the only one that writes into this file, where that is known."""
        self._file, self._book, self._seen, self._screen = file, book, seen, screen
        self._words = wanted_words(book)
        self._pieces = Pieces()
        self._foreign = ForeignPrefixes()
        self._author = Speaker(rank) if rank is not None else None
        self._tracebacks = Tracebacks(file)
        self._table = Table()
        self._launchers = TorchrunLines(seen)
        self._aftermath = Aftermath()
        self._progress = ProgressRecords()
        self._alike: Counter[tuple[object, ...]] = Counter()
        self._speakers: set[object] = set()
        self._dull: set[bytes] = set()
        """Lines of these shapes, digits apart, say nothing; or nothing new."""
        self._before = b""
        self._last: tuple[int, bytes] = (0, b"")
        self._num_told = 0

    def feed(self, chunk: bytes) -> None:
        for number, block in self._pieces.feed(chunk):
            self._read_block(number, block)

    def finish(self) -> None:
        for number, block in self._pieces.finish():
            self._read_block(number, block)
        self._note_table_causes()
        self._note_tail()
        self._seen.num_processes = max(self._seen.num_processes, len(self._speakers))

    def _note_return(self, number: int, block: bytes) -> None:
        if self._file in self._seen.first_returns or b"\r" not in block:
            return
        if (found := _RETURN.search(block)) is not None:
            self._seen.first_returns[self._file] = number + block.count(b"\n", 0, found.start())

    def _read_block(self, number: int, block: bytes) -> None:
        """Look closely at the lines that hold one of the words, and at those that belong to something open."""
        self._note_return(number, block)
        position, size, last = 0, len(block), number + block.count(b"\n")
        hints = self._screen(block) if self._screen is not None else None
        hint = next(hints, size) if hints is not None else 0
        while position < size:
            if hints is not None and not self._is_open:
                while hint < position:
                    hint = next(hints, size)
                if hint >= size:
                    break
                start = block.rfind(b"\n", position, hint) + 1 or position
                number += block.count(b"\n", position, start)
                self._remember(block, start)
                position = start
            end = block.find(b"\n", position)
            end = size if end < 0 else end
            self._read_line(number, block[position:end])
            number, position = number + 1, end + 1
        self._keep_last(last, block)

    @property
    def _is_open(self) -> bool:
        return self._tracebacks.is_open or self._table.is_open or self._aftermath.is_open

    def _remember(self, block: bytes, start: int) -> None:
        """The line before the one that starts there; in the block before, if this one starts here."""
        if start > 0:
            self._before = block[block.rfind(b"\n", 0, start - 1) + 1 : start - 1][-400:]

    def _keep_last(self, number: int, block: bytes) -> None:
        self._last = number, (self._last[1] + block)[-_MAX_TAIL:]
        self._before = block[block.rfind(b"\n", 0, len(block) - 1) + 1 :].rstrip(b"\n")[-400:]
        self._seen.num_lines += block.count(b"\n")

    def _read_line(self, number: int, line: bytes) -> None:
        line = line.rstrip(b"\r")
        for start in range(0, len(line) or 1, MAX_PIECE_BYTES):
            part = line[start : start + MAX_PIECE_BYTES]
            for piece in part.split(b"\r") if b"\r" in part else (part,):
                self._read_piece(number, piece)
        self._before = line[-400:]

    def _read_piece(self, number: int, piece: bytes) -> None:
        self._note_process(piece)
        shape = piece.translate(_FOLD)
        if not self._is_open and (shape in self._dull or not self._is_wanted(piece, shape)):
            return
        was_open = self._is_open
        if self._look(number, piece) or was_open or self._is_open or len(self._dull) >= _MAX_SHAPES:
            return
        self._dull.add(shape)

    def _note_process(self, piece: bytes) -> None:
        """Apart from all else: some logs name rank and process in every line."""
        if self._num_told < _MAX_TOLD and processes.may_tell(piece):
            self._num_told += self._seen.processes.take(piece[:_MAX_TOLD_BYTES].decode("utf-8", "replace"))

    def _is_wanted(self, piece: bytes, shape: bytes) -> bool:
        lowered = piece.lower()
        if any(word in lowered for word in self._words):
            return True
        if len(self._dull) < _MAX_SHAPES:
            self._dull.add(shape)
        return False

    def _look(self, number: int, piece: bytes) -> bool:
        """Read one line closely; whether anything came of it."""
        self._foreign.is_in_table = self._table.is_open
        line = attribute(number, piece, self._foreign)
        if "\n" not in line.text:
            return self._look_at(line)
        news = [self._look_at(replace(line, text=text)) for text in line.text.split("\n")]
        self._tracebacks.close()
        return any(news)

    def _look_at(self, line: Line) -> bool:
        if line.text.lstrip().startswith(OWN_PREFIX):
            return False
        if self._author is not None and line.speaker.rank is None and not line.is_agents:
            line = replace(line, speaker=self._author)
        if line.speaker.rank is not None or line.speaker.task is not None:
            self._speakers.add((line.speaker.rank, line.speaker.task))
            self._seen.note_rank(line.speaker.rank)
            if line.speaker.rank is not None and line.speaker.task is not None:
                self._seen.task_ranks.add((line.speaker.task, line.speaker.rank))
        self._seen.note_host(line.speaker, is_agents=line.is_agents)
        if self._aftermath.is_open:
            self._aftermath.take(line)
        place = Place(self._file, line.number, quote_of(line))
        if self._table.accepts(line):
            one = self._table.take(line, place)
            if one is not None and len(self._seen.exits) < torchrun_lines.MAX_EXITS:
                self._seen.exits.append(one)
            return True
        if "Traceback (most" in line.text:
            self._tracebacks.precede(line.speaker, attribute(line.number, self._before, self._foreign))
        if self._tracebacks.is_source(line):
            return True
        is_launchers = self._launchers.take(line, place)
        raised = self._tracebacks.take(line, place.quote)
        return self._note(line, place, raised, is_launchers=is_launchers) or is_launchers or raised is not None

    def _note(self, line: Line, place: Place, raised: Raised | None, *, is_launchers: bool) -> bool:
        """Whether the line added anything to what was known."""
        is_new = raised is not None and raised.place.line == line.number
        wheres = ["line"]
        if raised is not None:
            wheres += [name for name, holds in (("agent", is_agents(raised)), ("error", is_own_error(raised))) if holds]
        frames = "\n".join(raised.frames) if raised is not None else ""
        text = line.text.strip()
        found = [self._hit(sign, match, line, place) for sign, match in self._book.search(text, wheres, frames)]
        watchdog = self._watchdog(line, place)
        behind = self._progress.take(line.number, line.text)
        if behind is not None:
            self._seen.behind[self._file] = place, behind
        if raised is not None and (not is_new or self._keep(raised)):
            raised.hits += found[: 50 - len(raised.hits)]
        fresh = [hit for hit in found if self._is_fresh(hit)] if raised is None else []
        self._seen.hits += fresh
        for hit in fresh:
            self._aftermath.begin(hit)
        if not found and raised is None and not watchdog and not is_launchers and not line.is_agents:
            self._suspect(line, place)
        return watchdog or bool(fresh) or behind is not None

    def _hit(self, sign: Sign, match: re.Match[str], line: Line, place: Place) -> Hit:
        named = match.groupdict().get("rank")
        return Hit(
            category=sign.category,
            place=place_at(place, line, match),
            speaker=line.speaker,
            time=line.time,
            is_stated=sign.states,
            priority=sign.priority,
            rank=int(named) if named is not None and len(named) < 7 else line.speaker.rank,
            is_support=sign.support,
            is_record=sign.record,
        )

    def _is_fresh(self, hit: Hit) -> bool:
        rank = hit.rank if hit.rank is not None else rank_in_group(hit.place.quote)
        key = (hit.category, hit.speaker, rank, hit.is_stated, hit.priority)
        self._alike[key] += 1
        limit = _MAX_RECORDS if hit.is_record else _MAX_ALIKE
        return self._alike[key] <= limit and len(self._seen.hits) < _MAX_HITS

    def _keep(self, raised: Raised) -> bool:
        key = (raised.speaker, raised.type, re.sub(r"\d+", "#", raised.message[:200]), is_agents(raised))
        self._alike[key] += 1
        limit = _MAX_ALIKE if raised.speaker.rank is not None else 64
        if self._alike[key] > limit or len(self._seen.raised) >= _MAX_RAISED:
            return False
        self._seen.raised.append(raised)
        self._aftermath.begin(raised)
        return True

    def _watchdog(self, line: Line, place: Place) -> bool:
        found = watchdog_of(line, place)
        if found is not None and len(self._seen.watchdogs) < _MAX_WATCHDOGS:
            self._seen.watchdogs.append(found)
        return found is not None

    def _suspect(self, line: Line, place: Place) -> None:
        if len(self._seen.suspects) < _MAX_SUSPECTS and is_suspect(line.text):
            self._seen.suspects.append(place)

    def _note_table_causes(self) -> None:
        """With an error file the table shows what a rank raised; its own stream may be elsewhere."""
        for one in self._seen.exits:
            place = one.message_place
            if place is None or place.file != self._file or not one.has_traceback:
                continue
            kind = kind_of(one.message, has_frames=True)
            if kind is None:
                continue
            speaker = attribute(0, b"").speaker
            raised = Raised(place, speaker, one.time, kind[0], kind[1], tuple(one.frames), one.rank, has_header=True)
            raised.is_in_table = True
            for said in (place, *one.message_rest):
                line = attribute(said.line, said.quote.encode())
                found = self._book.search(line.text.strip(), ("line", "error"), "\n".join(one.frames))
                raised.hits += [self._hit(sign, match, line, said) for sign, match in found]
            self._seen.raised.append(raised)

    def _note_tail(self) -> None:
        number, tail = self._last
        self._seen.progress += last_progress(self._file, number, tail)
        self._seen.good_ends += good_end(self._file, number, tail)


def wanted_words(book: SignBook) -> tuple[bytes, ...]:
    """In lower case: a line without any of them is read only inside of something open."""
    return tuple(word.encode() for word in dict.fromkeys((*_STRUCTURAL, *book.line_literals)))


def screened_words(book: SignBook) -> tuple[bytes, ...]:
    """Also those of lines that tell only which process is which rank."""
    return (*wanted_words(book), *(word.encode() for word in processes.LITERALS))
