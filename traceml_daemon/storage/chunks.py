"""One row of packed records, and the joining of small ones before they are written.

A rank that sends ten steps a frame would cost a row of 330 bytes each; rows that follow one another are joined, so that
a database row and everything that reads it later is paid once per hundreds of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from traceml_client.protocol.columns import NARROW, NUM_VALUES

MAX_JOINED: Final = 1000
"""Records in a joined row: 33 KB narrow, eight pages of SQLite."""


class Chunk(NamedTuple):
    """In the order of `schema.INSERT_CHUNK`."""

    incarnation_id: int
    stream: int
    first_seq: int
    num_records: int
    fmt: str
    columns: bytes
    is_salvaged: bool


def join_neighbours(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same records in fewer chunks; the order within each stream is kept."""
    runs: dict[tuple[int, int], list[Chunk]] = {}
    lengths: dict[tuple[int, int], int] = {}
    for chunk in chunks:
        key = (chunk[0], chunk[1])
        run = runs.get(key)
        if run is None:
            runs[key] = [chunk]
            lengths[key] = chunk[3]
            continue
        length = lengths[key] + chunk[3]
        if length <= MAX_JOINED and _continues(run[-1], chunk):
            run.append(chunk)
            lengths[key] = length
            continue
        yield _join(run)
        runs[key] = [chunk]
        lengths[key] = chunk[3]
    for run in runs.values():
        yield _join(run)


def _continues(before: Chunk, after: Chunk) -> bool:
    return before[2] + before[3] == after[2] and before[4] == after[4] and before[6] == after[6]


def _join(run: list[Chunk]) -> Chunk:
    first = run[0]
    if len(run) == 1:
        return first
    counts = [chunk[3] for chunk in run]
    size = counts[0]
    parts: list[bytes] = []
    end = 0
    for width in (8, 1) + ((4 if first.fmt == NARROW else 8),) * NUM_VALUES:
        start, end = end, end + width * size
        if counts.count(size) == len(counts):  # the usual case, four times as fast: every piece has the same place
            parts += [chunk[5][start:end] for chunk in run]
        else:
            parts += [chunk[5][start // size * n : end // size * n] for chunk, n in zip(run, counts, strict=True)]
    return first._replace(num_records=sum(counts), columns=b"".join(parts))
