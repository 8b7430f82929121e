"""Whether a run that was ended from outside had hung before, and which rank the others waited for.

When each rank last completed a step, in the run's database, tells a hang from a run that was merely ended.
"""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from traceml_client.protocol.columns import NUM_VALUES, STEP_STREAM, unpack
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_daemon.core.events import Incarnation
from traceml_daemon.report.blame import Blame
from traceml_daemon.report.symptom_text import who
from traceml_daemon.report.symptoms import Symptom

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


_MIN_STALL_NS: Final = 1_500_000_000
_STALL_STEPS: Final = 20
"""A rank that made no step for so many times its usual one had stopped, not slowed down."""
_WAITING_PHASE: Final = "backward"
"""Where a rank waits for the others' gradients."""


def blame_hang(symptoms: Sequence[Symptom], progress: Mapping[Incarnation, Progress], stopped_ns: int) -> Blame | None:
    """The rank that alone was not where ranks wait for one another, all of them without a step for long.

    `stopped_ns`: when somebody ended the run, wall clock of the daemon's host.
    """
    seen = [progress.get(symptom.attempt.incarnation) for symptom in symptoms]
    known = [one for one in seen if one is not None]
    if len(symptoms) < 2 or len(known) < len(symptoms):
        return None
    still_ns = stopped_ns - max(one.last_step_ns for one in known)
    if still_ns < max(_MIN_STALL_NS, _STALL_STEPS * max(one.typical_step_ns for one in known)):
        return None
    last_step = max(symptom.step or 0 for symptom in symptoms)
    absent = [s for s in symptoms if s.phase != _WAITING_PHASE or (s.step or 0) < last_step]
    if len(absent) != 1:
        return None
    one = absent[0]
    where = f" ({one.phase})" if one.phase not in (None, "residual") else ""
    headline = (
        f"{who(one)} stood still in step {one.step}{where} for {still_ns / 1e9:.1f} s while the others waited for it,"
        " until the run was ended from outside"
    )
    return Blame("hang", "likely", headline, one)
