"""Reads log files in pieces into the triage's observations. Blocks."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.reader import LogReader, Screen, screened_words

_TAIL_BYTES: Final = 256 << 10
_TAIL_LINES: Final = 400
"""What a person still reads of a stream in a ticket; long lines must not fill it alone."""
CHUNK_BYTES: Final = 1 << 20
_RANK_STREAM: Final = re.compile(r"(?:^|/)rank_(\d+)/attempt_\d+/std(?:err|out)\.log$")
_RANK_NAME: Final = re.compile(
    r"(?i)(?:^|/)(?![^/]*(?:local|node|group))(?:[^/]*[^a-z/])?rank[-_. =]?(\d{1,6})(?!\d)[^/]*$"
)
_LARGE_BYTES: Final = 4 << 20
"""From here on numpy's import pays."""
_KEPT_BYTES: Final = 16 << 20
"""Once a block of this size was freed, glibc keeps as much for the next ones, where it else gives each block's pages
back and gets new ones: a third of the time of reading a large log."""


def read_file(path: Path, index: int, seen: Observations) -> None:
    """Add what a file holds; `index`: its number among the files. Raises OSError."""
    with path.open("rb") as file:
        feed(read_chunks(file), index, seen, screen=large_screen(path.stat().st_size))


def rank_of_name(name: str) -> int | None:
    """`rank_3.log`, `stderr.rank3`, a stream of a run: the rank that is the only author of a file by its name."""
    found = _RANK_STREAM.search(name) or _RANK_NAME.search(name)
    return int(found[1]) if found is not None else None


def feed(
    chunks: Iterator[bytes], index: int, seen: Observations, *, screen: Screen | None, rank: int | None = None
) -> None:
    reader = LogReader(index, load_book(), seen, screen=screen, rank=rank)
    for chunk in chunks:
        reader.feed(chunk)
    reader.finish()


def read_tail(path: Path) -> str:
    """The last lines of a file, as many as fit into a ticket. Raises OSError."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = deque(file, maxlen=_TAIL_LINES)
    return b"".join(lines).decode("utf-8", "replace")


def read_chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def large_screen(num_bytes: int, words: Iterable[bytes] = ()) -> Screen | None:
    """What finds the lines worth a look (or with such words) in a large file; small ones are read line by line."""
    if num_bytes < _LARGE_BYTES:
        return None
    bytes(_KEPT_BYTES)
    from traceml_daemon.triage.screen import build_screen

    return build_screen(words or screened_words(load_book()))
