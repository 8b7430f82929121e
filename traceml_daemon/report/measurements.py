"""Reads the measurements back from the database's packed rows: rank by rank, in pieces of bounded size.

The database is opened read-only, sealed or live. Rows carry whole columns, so nothing here touches single records.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from traceml_client.protocol.columns import (
    NARROW,
    NOT_MEASURED,
    NUM_VALUES,
    RECORD_SIZE,
    SAMPLE_STREAM,
    STEP_STREAM,
    WIDE,
)
from traceml_client.protocol.errors import StoreError
from traceml_daemon.core.events import Incarnation

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PIECE_RECORDS: Final = 1 << 16
"""4 MB of columns at a time, whatever the length of the run."""


class _Row(NamedTuple):
    first_seq: int
    num_records: int
    id: int
    is_narrow: bool


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of one stream of one incarnation."""

    sequences: Integers
    """A step's number is its sequence + 1."""
    end_ns: Integers
    """The rank's monotonic clock."""
    tags: npt.NDArray[np.uint8]
    values: Integers
    """Shape (6, n); NOT_MEASURED where it was not."""


class Measurements:
    """All records of a run. A context manager; to be used in one thread.

    Raises:
        StoreError: the file is no database of ours, or damaged; the text names it.
    """

    def __init__(self, database: Path) -> None:
        self._path = database
        try:
            self._connection = sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)
        except sqlite3.Error as error:
            raise StoreError(f"{database}: {error}") from None
        self._rows: dict[tuple[Incarnation, int], list[_Row]] = {}

    def __enter__(self) -> Measurements:
        try:
            self._rows = self._read_places()
        except StoreError:
            self._connection.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()

    def num_steps(self, incarnation: Incarnation) -> int:
        """The number of its last step."""
        rows = self._rows.get((incarnation, STEP_STREAM), ())
        return max((row.first_seq + row.num_records for row in rows), default=0)

    def steps(self, incarnation: Incarnation) -> Iterator[Records]:
        """Its step records in order, at most about PIECE_RECORDS at a time."""
        return self._read(incarnation, STEP_STREAM)

    def samples(self, incarnation: Incarnation) -> Iterator[Records]:
        """Its sample records in order; tags are their kinds."""
        return self._read(incarnation, SAMPLE_STREAM)

    def _read_places(self) -> dict[tuple[Incarnation, int], list[_Row]]:
        """Where every row is, without its columns: a few dozen bytes for a thousand steps."""
        places: dict[tuple[Incarnation, int], list[_Row]] = defaultdict(list)
        incarnations = {
            row[0]: Incarnation(*row[1:])
            for row in self._select("SELECT id, node_index, local_rank, attempt FROM incarnation")
        }
        for row in self._select("SELECT incarnation_id, stream, first_seq, count, id, fmt FROM chunk"):
            incarnation_id, stream, first_seq, count, row_id, fmt = row
            if incarnation_id in incarnations:
                key = (incarnations[incarnation_id], stream)
                places[key].append(_Row(first_seq, count, row_id, fmt == NARROW))
        for rows in places.values():
            rows.sort()
        return dict(places)

    def _read(self, incarnation: Incarnation, stream: int) -> Iterator[Records]:
        pending: list[Records] = []
        num_pending = next_seq = 0
        for row in self._rows.get((incarnation, stream), ()):
            ((blob,),) = self._select("SELECT columns FROM chunk WHERE id = ?", row.id)
            pending.append(_decode(row, blob, num_known=max(0, next_seq - row.first_seq)))
            next_seq = max(next_seq, row.first_seq + row.num_records)
            num_pending += row.num_records
            if num_pending >= PIECE_RECORDS:
                yield _join(pending)
                pending, num_pending = [], 0
        if pending:
            yield _join(pending)

    def _select(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from None


def _decode(row: _Row, blob: bytes, *, num_known: int) -> Records:
    """One row's columns, without its first `num_known` records, which an earlier row held already."""
    count = row.num_records
    if len(blob) != RECORD_SIZE[NARROW if row.is_narrow else WIDE] * count:
        raise StoreError(f"row {row.id} of table chunk is damaged")
    kind = "<u4" if row.is_narrow else "<i8"
    values = np.frombuffer(blob, kind, NUM_VALUES * count, 9 * count).reshape(NUM_VALUES, count)
    return Records(
        sequences=np.arange(row.first_seq + num_known, row.first_seq + count, dtype=np.int64),
        end_ns=np.frombuffer(blob, "<i8", count)[num_known:],
        tags=np.frombuffer(blob, np.uint8, count, 8 * count)[num_known:],
        values=_widen(values[:, num_known:], is_narrow=row.is_narrow),
    )


def _widen(values: npt.NDArray[Any], *, is_narrow: bool) -> Integers:
    wide = values.astype(np.int64)
    if is_narrow:
        wide[wide == 0xFFFFFFFF] = NOT_MEASURED
    return wide


def _join(pieces: list[Records]) -> Records:
    if len(pieces) == 1:
        return pieces[0]
    return Records(
        sequences=np.concatenate([piece.sequences for piece in pieces]),
        end_ns=np.concatenate([piece.end_ns for piece in pieces]),
        tags=np.concatenate([piece.tags for piece in pieces]),
        values=np.concatenate([piece.values for piece in pieces], axis=1),
    )
