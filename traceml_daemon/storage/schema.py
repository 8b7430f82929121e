"""The telemetry database's tables, and the view that a person queries.

    SELECT rank, attempt, step, step_ns / 1e6 AS ms FROM steps WHERE rank = 0 ORDER BY attempt, step;

`steps` decodes the packed columns of `chunk` with nothing but SQL, so plain `sqlite3` is enough: slow (about 100 us a
step) and always right. Durations are nanoseconds, null where a phase was not measured; `ended_at_ns` is wall-clock
nanoseconds of the daemon's host.
"""

from __future__ import annotations

from typing import Final

from traceml_client.protocol import columns

SCHEMA_VERSION: Final = 1

TABLES: Final = """
CREATE TABLE IF NOT EXISTS incarnation (
    id INTEGER PRIMARY KEY,
    node_index INTEGER NOT NULL,
    local_rank INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    world_size INTEGER NOT NULL,
    local_world_size INTEGER NOT NULL,
    torch_restart_count INTEGER NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start_ticks INTEGER NOT NULL,
    wall_minus_monotonic_ns INTEGER NOT NULL,
    clock_offset_ns INTEGER NOT NULL,
    clock_bound_ns INTEGER NOT NULL,
    first_at_ns INTEGER,
    last_at_ns INTEGER,
    started_ns INTEGER,
    error TEXT,
    thread_error TEXT,
    exit_code INTEGER,
    notes TEXT NOT NULL,
    is_finished INTEGER NOT NULL,
    steps_recorded INTEGER,
    samples_recorded INTEGER,
    UNIQUE (node_index, local_rank, attempt)
);
CREATE TABLE IF NOT EXISTS chunk (
    id INTEGER PRIMARY KEY,
    incarnation_id INTEGER NOT NULL REFERENCES incarnation (id),
    stream INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    count INTEGER NOT NULL,
    fmt TEXT NOT NULL,
    columns BLOB NOT NULL,
    is_salvaged INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

INCARNATION_COLUMNS: Final = (
    "id", "node_index", "local_rank", "attempt", "rank", "world_size", "local_world_size", "torch_restart_count",
    "host", "pid", "start_ticks", "wall_minus_monotonic_ns", "clock_offset_ns", "clock_bound_ns", "first_at_ns",
    "last_at_ns", "started_ns", "error", "thread_error", "exit_code", "notes", "is_finished", "steps_recorded",
    "samples_recorded",
)  # fmt: skip

UPSERT_INCARNATION: Final = (
    f"INSERT INTO incarnation ({', '.join(INCARNATION_COLUMNS)}) VALUES ({', '.join('?' * len(INCARNATION_COLUMNS))})"
    f" ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in INCARNATION_COLUMNS[1:])}"
)
INSERT_CHUNK: Final = (
    "INSERT INTO chunk (incarnation_id, stream, first_seq, count, fmt, columns, is_salvaged)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
UPSERT_META: Final = (
    "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
SELECT_INCARNATIONS: Final = f"SELECT {', '.join(INCARNATION_COLUMNS)} FROM incarnation ORDER BY id"
SELECT_STREAMS: Final = (
    "SELECT incarnation_id, stream, MAX(first_seq + count), SUM(count), SUM(count * is_salvaged) FROM chunk"
    " GROUP BY incarnation_id, stream"
)
SELECT_LAST_CHUNKS: Final = (
    "SELECT incarnation_id, stream, count, columns, MAX(first_seq) FROM chunk GROUP BY incarnation_id, stream"
)
"""SQLite takes the other columns from the row that has the maximum."""
SELECT_META: Final = "SELECT key, value FROM meta"

_BYTES = "x'" + bytes(range(256)).hex() + "'"


def _integer(start: str, num_bytes: int) -> str:
    """SQL for a little-endian integer in `columns`; SQLite has no such function, but can find a byte among all 256."""
    parts = [
        f"(instr({_BYTES}, substr(columns, {start} + {place + 1}, 1)) - 1 << {8 * place})" for place in range(num_bytes)
    ]
    return "(" + " | ".join(parts) + ")"


def _value(index: int) -> str:
    """SQL for value column `index` of the step at place `i` of its chunk."""
    narrow = _integer(f"9 * count + 4 * count * {index} + 4 * i", 4)
    wide = _integer(f"9 * count + 8 * count * {index} + 8 * i", 8)
    return (
        f"CASE fmt WHEN '{columns.NARROW}' THEN nullif({narrow}, {0xFFFFFFFF})"
        f" ELSE nullif({wide}, {columns.NOT_MEASURED}) END"
    )


def _steps_view() -> str:
    tag = _integer("8 * count + i", 1)
    values = ",\n    ".join(f"{_value(index)} AS {name}_ns" for index, name in enumerate((*columns.PHASES, "step")))
    return f"""
CREATE VIEW IF NOT EXISTS steps AS
WITH RECURSIVE place (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM place WHERE i + 1 < (SELECT MAX(count) FROM chunk))
SELECT
    rank, node_index, local_rank, attempt,
    first_seq + i + 1 AS step,
    {_integer("8 * i", 8)} + wall_minus_monotonic_ns + clock_offset_ns AS ended_at_ns,
    {values},
    {tag} & {columns.IS_SKIPPED} > 0 AS is_skipped,
    {tag} & {columns.IS_WARMUP} > 0 AS is_warmup,
    {tag} & {columns.IS_UNUSUAL} > 0 AS is_unusual,
    is_salvaged
FROM chunk JOIN incarnation ON incarnation.id = chunk.incarnation_id JOIN place ON place.i < chunk.count
WHERE stream = {columns.STEP_STREAM};
"""


STEPS_VIEW: Final = _steps_view()
