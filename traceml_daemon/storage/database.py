"""How the telemetry database is opened and made whole, by the kind of file system it lies on.

Local: write-ahead log, live readers welcome. Across a network there is no shared memory, so SQLite gets the file to
itself (`locking_mode=EXCLUSIVE` before WAL, which then makes no `-shm` file) and returns to a rollback journal at the
seal. Where even locks fail, the file is kept in a local folder and moved into place at the seal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from traceml_client.protocol.atomic_files import write_atomically
from traceml_daemon.storage import schema
from traceml_daemon.storage.rows import Recovered
from traceml_daemon.storage.volume import file_system_type, is_network_volume

_WAL_PAGES = 4000
"""16 MB between automatic checkpoints, which run on the writer's thread."""


LOCK_WAIT_S: Final = 0.5
"""One try; the writer tries again."""
SEALING_STATEMENTS: Final = ("PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA journal_mode=DELETE")
"""What makes the file complete in itself: a copy of it opens anywhere, also where nothing can be written beside it."""


class DatabaseFile:
    """One database file. Every method blocks and belongs to the writer's thread or an executor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_exclusive = False
        self.recovered = Recovered()
        self._local_copy: Path | None = None

    def connect(self) -> sqlite3.Connection:
        """Open or create it, with its tables, and read back what it holds.

        Raises:
            sqlite3.Error: as SQLite says; also for a file that is no database.
            OSError: the file cannot be created.
        """
        self.is_exclusive = is_network_volume(file_system_type(self.path.parent))
        if not self.is_exclusive:
            return self._open(self.path)
        self._local_copy = self._left_behind()
        if self._local_copy is None:
            try:
                return self._open(self.path)
            except sqlite3.OperationalError:
                self._local_copy = self._make_local_copy()
        return self._open(self._local_copy)

    def _left_behind(self) -> Path | None:
        """The copy of a daemon of this run that was killed on this host: it has what that one acknowledged."""
        try:
            copy = Path(self._pointer.read_text())
            return copy if copy.stat().st_uid == os.getuid() else None
        except (OSError, ValueError):
            return None

    def _make_local_copy(self) -> Path:
        copy = Path(tempfile.mkdtemp(prefix="traceml-")) / self.path.name
        if self.path.exists():
            shutil.copyfile(self.path, copy)
        write_atomically(self._pointer, str(copy).encode())
        return copy

    @property
    def _pointer(self) -> Path:
        """Where the local copy is, for the daemon that comes after us; in the run's own folder, which is ours alone."""
        return self.path.with_name(f".{self.path.name}.local")

    def put_in_place(self) -> None:
        """After the connection is closed: where it was kept elsewhere, move the file to where it belongs."""
        if self._local_copy is None:
            return
        shutil.copyfile(self._local_copy, self.path)
        with contextlib.suppress(OSError):
            os.chmod(self.path, 0o600)
        shutil.rmtree(self._local_copy.parent, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._pointer.unlink()
        self._local_copy = None

    def _open(self, path: Path) -> sqlite3.Connection:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(path, timeout=LOCK_WAIT_S)
        try:
            if self.is_exclusive:
                database.execute("PRAGMA locking_mode=EXCLUSIVE").fetchone()
            database.execute("PRAGMA journal_mode=WAL").fetchone()
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute(f"PRAGMA wal_autocheckpoint={_WAL_PAGES}")
            database.executescript(schema.TABLES + schema.STEPS_VIEW)
            self.recovered = read_recovered(database)
        except BaseException:
            database.close()
            raise
        return database


def read_recovered(database: sqlite3.Connection) -> Recovered:
    """Raises sqlite3.Error."""
    return Recovered.from_rows(
        incarnations=database.execute(schema.SELECT_INCARNATIONS),
        streams=database.execute(schema.SELECT_STREAMS),
        meta=database.execute(schema.SELECT_META),
    )
