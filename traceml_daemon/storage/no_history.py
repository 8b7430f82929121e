"""`--no-history`: records are acknowledged and counted, and nothing is kept."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from traceml_daemon.own_faults import AFTER_COMMIT, OwnFaults
from traceml_daemon.storage.chunks import Chunk
from traceml_daemon.storage.rows import IncarnationRow, Recovered


class NoHistory:
    """A `store.Sink` without a database."""

    failure = None
    has_live_readers = False

    def __init__(self) -> None:
        self.on_commit: Callable[[list[Chunk], bool], None] = lambda _chunks, _is_stored: None
        self.on_room: Callable[[], None] = lambda: None
        self.recovered = Recovered()
        self._loop = asyncio.get_running_loop()
        self._chunks: list[Chunk] = []
        self._callbacks: list[Callable[[], None]] = []
        self._turn: asyncio.Handle | None = None
        self._own_faults = OwnFaults(AFTER_COMMIT)

    @property
    def faults(self) -> tuple[str, ...]:
        return self._own_faults.sentences

    @property
    def is_idle(self) -> bool:
        return self._turn is None

    def put(self, chunk: Chunk) -> bool:
        self._chunks.append(chunk)
        self._settle_soon()
        return False

    def put_incarnation(self, row: IncarnationRow) -> None:
        """Nothing is kept."""

    def put_meta(self, key: str, value: str) -> None:
        """Nothing is kept."""

    def when_committed(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        self._settle_soon()

    async def drain(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._settle()

    async def seal(self) -> None:
        await self.drain()

    def _settle_soon(self) -> None:
        if self._turn is None:
            self._turn = self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._turn = None
        chunks, self._chunks = self._chunks, []
        callbacks, self._callbacks = self._callbacks, []
        if chunks:
            callbacks.insert(0, functools.partial(self.on_commit, chunks, True))
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the others have to be told all the same
                self._own_faults.count(error)
