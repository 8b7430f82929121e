"""When each rank last completed a step, from the run's database: what tells a hang from a run that was merely ended."""

from __future__ import annotations

import sqlite3
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from traceml_client.protocol.columns import NUM_VALUES, STEP_STREAM, unpack
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_daemon.core.events import Incarnation

_LAST_CHUNKS: Final = """
SELECT i.node_index, i.local_rank, i.attempt, i.wall_minus_monotonic_ns + i.clock_offset_ns, c.fmt, c.count, c.columns
FROM chunk c JOIN incarnation i ON i.id = c.incarnation_id
WHERE c.id IN (SELECT max(id) FROM chunk WHERE stream = ? GROUP BY incarnation_id)
"""


@dataclass(frozen=True, slots=True)
class Progress:
    last_step_ns: int
    """End of the last completed step, wall clock of the daemon's host."""
    typical_step_ns: int
    """The median of the latest steps."""


def read_progress(run_dir: Path) -> dict[Incarnation, Progress]:
    """By attempt; empty without a readable database."""
    path = run_dir / DATABASE_FILE
    if not path.is_file():
        return {}
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    except sqlite3.Error:
        return {}
    try:
        rows = connection.execute(_LAST_CHUNKS, (STEP_STREAM,)).fetchall()
    except sqlite3.Error:
        return {}
    finally:
        connection.close()
    found = {}
    for node_index, local_rank, attempt, to_wall_ns, fmt, count, blob in rows:
        ends, _, values = unpack(fmt, count, blob)
        typical_ns = int(statistics.median(values[NUM_VALUES - 1]))
        found[Incarnation(node_index, local_rank, attempt)] = Progress(ends[-1] + to_wall_ns, typical_ns)
    return found
