"""What a person who opens the database finds in it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path


def count_steps(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database:
        (row,) = database.execute("SELECT COUNT(*) FROM steps").fetchall()
    return int(row[0])
