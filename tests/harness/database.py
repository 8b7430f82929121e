"""Fills a telemetry database for tests of the reports, with the tables of the real store."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceml_client.protocol import columns
from traceml_daemon.core.events import Incarnation
from traceml_daemon.storage import schema
from traceml_daemon.storage.rows import IncarnationRow

MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Durations in nanoseconds; NOT_MEASURED where a phase was not."""

    input_wait: int = 1 * MS
    h2d: int = columns.NOT_MEASURED
    forward: int = 3 * MS
    backward: int = 4 * MS
    optimizer: int = 1 * MS
    step: int = 10 * MS
    tag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    kind: int
    values: tuple[int, ...]
    at_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What one incarnation recorded."""

    rank: int
    steps: Sequence[Step] = ()
    samples: Sequence[Sample] = ()
    salvaged_from: int | None = None
    """The first step sequence that its launcher handed in."""
    world_size: int = 1


def write_database(path: Path, contents: Mapping[Incarnation, Content], *, chunk_records: int = 100) -> Path:
    """A database as the store leaves it at the seal."""
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(schema.TABLES)
        for number, (incarnation, content) in enumerate(contents.items(), 1):
            placeholders = ", ".join("?" * len(schema.INCARNATION_COLUMNS))
            connection.execute(
                f"INSERT INTO incarnation VALUES ({placeholders})", _incarnation_row(number, incarnation, content)
            )
            connection.executemany(schema.INSERT_CHUNK, list(_rows(number, content, chunk_records)))
    connection.close()
    return path


def _incarnation_row(number: int, incarnation: Incarnation, content: Content) -> IncarnationRow:
    return IncarnationRow(
        id=number,
        node_index=incarnation.node_index,
        local_rank=incarnation.local_rank,
        attempt=incarnation.attempt,
        rank=content.rank,
        world_size=content.world_size,
        local_world_size=content.world_size,
        torch_restart_count=incarnation.attempt,
        host="node-a",
        pid=100 + content.rank,
        start_ticks=1,
        wall_minus_monotonic_ns=0,
        clock_offset_ns=0,
        clock_bound_ns=0,
        first_at_ns=None,
        last_at_ns=None,
        started_ns=None,
        error=None,
        thread_error=None,
        exit_code=None,
        notes="[]",
        is_finished=1,
        steps_recorded=None,
        samples_recorded=None,
    )


def _rows(number: int, content: Content, chunk_records: int) -> list[tuple[object, ...]]:
    rows = []
    for stream, records in (
        (columns.STEP_STREAM, _step_words(content)),
        (columns.SAMPLE_STREAM, _sample_words(content)),
    ):
        total = len(records) // columns.RECORD_WORDS
        for first in range(0, total, chunk_records):
            count = min(chunk_records, total - first)
            piece = records[first * columns.RECORD_WORDS : (first + count) * columns.RECORD_WORDS]
            fmt, packed = columns.pack(memoryview(piece))
            is_salvaged = stream == columns.STEP_STREAM and content.salvaged_from is not None
            is_salvaged = is_salvaged and first >= (content.salvaged_from or 0)
            rows.append((number, stream, first, count, fmt, packed, is_salvaged))
    return rows


def _step_words(content: Content) -> array[int]:
    words: array[int] = array("q")
    end_ns = 0
    for step in content.steps:
        end_ns += step.step
        words.extend(
            (step.tag, end_ns, step.input_wait, step.h2d, step.forward, step.backward, step.optimizer, step.step)
        )
    return words


def _sample_words(content: Content) -> array[int]:
    words: array[int] = array("q")
    for sample in content.samples:
        values = (*sample.values, *(columns.NOT_MEASURED,) * (columns.NUM_VALUES - len(sample.values)))
        words.extend((sample.kind, sample.at_ns, *values))
    return words
