"""The telemetry database's one writer: a bounded queue in front, one transaction for everything that is queued.

`put` never waits, so the hot path stays synchronous; its answer tells the shell to stop reading sockets, and `on_room`
that it may go on. What is committed is reported by `on_commit`, in order; acknowledgements are sent from there only.
A transaction that fails (disk full) is dropped, counted and reported as not stored, and the next one is tried as usual:
telemetry degrades, the run goes on. Where only somebody else's lock is in the way (a person's shell), it is tried again
for a while first: the queue fills, sockets are not read, and the ranks' recorders hold what is new.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

import aiosqlite

from traceml_client.protocol.errors import StoreError
from traceml_daemon.own_faults import AFTER_COMMIT, OwnFaults
from traceml_daemon.storage import schema
from traceml_daemon.storage.chunks import Chunk, join_neighbours
from traceml_daemon.storage.database import SEALING_STATEMENTS, DatabaseFile
from traceml_daemon.storage.rows import IncarnationRow, Recovered

MAX_QUEUED_BYTES: Final = 8 << 20
"""A quarter of a second of a loaded core's intake; with the batch being written, twice this is held at most."""
CHUNK_OVERHEAD_BYTES: Final = 250
"""What a queued chunk costs beside its columns."""
LINGER_S: Final = 0.05
"""A transaction costs 150 us and an acknowledgement 10, so a trickle of frames waits this long for company."""
LOCKED_S: Final = 30.0
"""Patience with a lock, once: where it was in vain, the next transaction has none."""
SEALING_LOCKED_S: Final = 5.0
"""Somebody reads a file that is complete; making it whole is worth less than the report in time."""

_log = logging.getLogger("traceml_daemon")


class Sink(Protocol):
    """Where a session puts what it wants kept: the database, or nothing with `--no-history`."""

    on_commit: Callable[[list[Chunk], bool], None]
    """Called with what one transaction held, and whether it is stored; false: it is lost and must be counted."""
    on_room: Callable[[], None]
    """Called when a queue that was full is empty again."""

    @property
    def is_idle(self) -> bool:
        """Nothing is queued and nothing is being written."""
        ...

    @property
    def failure(self) -> str | None:
        """One sentence on the first failed write; null while all went well."""
        ...

    @property
    def faults(self) -> tuple[str, ...]:
        """One sentence on errors of whoever was told of commits, with their number; empty while there are none."""
        ...

    @property
    def recovered(self) -> Recovered:
        """What the database held when it was opened."""
        ...

    @property
    def has_live_readers(self) -> bool:
        """Whether another connection can read what is committed while we write."""
        ...

    def put(self, chunk: Chunk) -> bool:
        """Queue it; whether the queue is full now. Does not wait."""
        ...

    def put_incarnation(self, row: IncarnationRow) -> None: ...
    def put_meta(self, key: str, value: str) -> None: ...
    def when_committed(self, callback: Callable[[], None]) -> None:
        """Call back, soon, once everything that was put before is stored or counted as lost."""
        ...

    async def drain(self) -> None:
        """Return once everything that was put is stored or counted as lost."""
        ...

    async def seal(self) -> None:
        """Drain, make the file whole and close it. Whatever is put afterwards is ignored. Legal twice."""
        ...


class _Batch:
    """What one transaction will hold."""

    __slots__ = ("callbacks", "chunks", "incarnations", "meta", "num_bytes")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.incarnations: dict[int, IncarnationRow] = {}
        self.meta: dict[str, str] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.num_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not (self.chunks or self.incarnations or self.meta or self.callbacks)


class Store:
    """A `Sink` on a SQLite file. Belongs to one event loop."""

    def __init__(self, database: aiosqlite.Connection, file: DatabaseFile, *, max_queued_bytes: int) -> None:
        self.on_commit: Callable[[list[Chunk], bool], None] = lambda _chunks, _is_stored: None
        self.on_room: Callable[[], None] = lambda: None
        self._database = database
        self._file = file
        self._max_queued_bytes = max_queued_bytes
        self._batch = _Batch()
        self._is_writing = False
        self._is_sealed = False
        self._failure: str | None = None
        self._own_faults = OwnFaults(AFTER_COMMIT)
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._linger: asyncio.TimerHandle | None = None
        self._writer = self._loop.create_task(self._write_batches(), name="store writer")

    @classmethod
    async def open(cls, path: Path, *, max_queued_bytes: int = MAX_QUEUED_BYTES) -> Store:
        """Open or create the database, mode 0600.

        Raises:
            StoreError: it cannot be opened or is not one of ours; the text names the file.
        """
        file, failures = DatabaseFile(path), list[sqlite3.Error | OSError]()

        def connect() -> sqlite3.Connection:
            # aiosqlite does not wait for its thread if this raises, and the thread then reports to a closed loop.
            try:
                return file.connect()
            except (sqlite3.Error, OSError) as error:
                failures.append(error)
                return sqlite3.connect(":memory:")

        database = await aiosqlite.Connection(connect, iter_chunk_size=64)
        if failures:
            await database.close()
            raise StoreError(f"{path}: {failures[0]}") from None
        return cls(database, file, max_queued_bytes=max_queued_bytes)

    @property
    def is_idle(self) -> bool:
        return self._batch.is_empty and not self._is_writing

    @property
    def failure(self) -> str | None:
        return self._failure

    @property
    def faults(self) -> tuple[str, ...]:
        return self._own_faults.sentences

    @property
    def recovered(self) -> Recovered:
        return self._file.recovered

    @property
    def has_live_readers(self) -> bool:
        return not self._file.is_exclusive

    def put(self, chunk: Chunk) -> bool:
        batch = self._batch
        batch.chunks.append(chunk)
        batch.num_bytes += len(chunk[5]) + CHUNK_OVERHEAD_BYTES
        if self._linger is None:
            self._write_soon()
        return batch.num_bytes >= self._max_queued_bytes

    def put_incarnation(self, row: IncarnationRow) -> None:
        self._batch.incarnations[row.id] = row
        self._write_soon()

    def put_meta(self, key: str, value: str) -> None:
        self._batch.meta[key] = value
        self._write_soon()

    def when_committed(self, callback: Callable[[], None]) -> None:
        self._batch.callbacks.append(callback)
        self._wake.set()

    async def drain(self) -> None:
        if self.is_idle or self._is_sealed:
            return
        drained = asyncio.Event()
        self.when_committed(drained.set)
        await drained.wait()

    async def seal(self) -> None:
        if self._is_sealed:
            return
        await self.drain()
        self._is_sealed = True
        self._writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._writer
        if self._linger is not None:
            self._linger.cancel()
        error = await self._patiently(self._make_whole, SEALING_LOCKED_S)
        if error is not None:
            self._fail(error)
        await self._database.close()
        await self._loop.run_in_executor(None, self._file.put_in_place)

    def _write_soon(self) -> None:
        if self._linger is None and not self._is_sealed:
            self._linger = self._loop.call_later(LINGER_S, self._wake.set)

    async def _write_batches(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._linger is not None:
                self._linger.cancel()
                self._linger = None
            batch, self._batch = self._batch, _Batch()
            self._is_writing = True
            if batch.num_bytes >= self._max_queued_bytes:
                self.on_room()
            is_stored = await self._write(batch)
            self._is_writing = False
            self._tell(batch, is_stored=is_stored)

    def _tell(self, batch: _Batch, *, is_stored: bool) -> None:
        told: list[Callable[[], None]] = [functools.partial(self.on_commit, batch.chunks, is_stored), *batch.callbacks]
        for tell in told:
            try:
                tell()
            except Exception as error:  # noqa: BLE001 - an error in somebody's bookkeeping must not stop the only writer
                self._own_faults.count(error)

    async def _write(self, batch: _Batch) -> bool:
        """One transaction; whether its chunks are stored. Rows about ranks are kept for the next one if it fails."""
        error = await self._patiently(functools.partial(self._commit, batch), LOCKED_S)
        if error is None:
            return True
        self._fail(error)
        self._batch.incarnations = batch.incarnations | self._batch.incarnations
        self._batch.meta = batch.meta | self._batch.meta
        return False

    async def _commit(self, batch: _Batch) -> None:
        database = self._database
        try:
            if batch.incarnations:
                await database.executemany(schema.UPSERT_INCARNATION, batch.incarnations.values())
            if batch.meta:
                await database.executemany(schema.UPSERT_META, batch.meta.items())
            if batch.chunks:
                await database.executemany(schema.INSERT_CHUNK, join_neighbours(batch.chunks))
            await database.commit()
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                await database.rollback()
            raise

    async def _make_whole(self) -> None:
        for statement in SEALING_STATEMENTS:
            await self._database.execute_fetchall(statement)

    async def _patiently(
        self, act: Callable[[], Awaitable[None]], patience_s: float
    ) -> sqlite3.Error | OverflowError | None:
        """Its error, if it has one in the end; each try waits a moment for the lock itself."""
        until_s = self._loop.time() + (patience_s if self._failure is None else 0.0)
        while True:
            try:
                await act()
            except (sqlite3.Error, OverflowError) as error:
                if not _is_locked(error) or self._loop.time() >= until_s:
                    return error
            else:
                return None

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = f"{self._file.path.name}: {error}"


def _is_locked(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
