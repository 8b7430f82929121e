"""The back-pressure latch: stop reading ranks while the store's queue is full, go on when it has room."""

from __future__ import annotations

from typing import Protocol


class Pausable(Protocol):
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class FlowControl:
    """The connections of one run that bring records."""

    def __init__(self) -> None:
        self.is_paused = False
        self.num_pauses = 0
        self._connections: set[Pausable] = set()

    def add(self, connection: Pausable) -> None:
        self._connections.add(connection)
        if self.is_paused:
            connection.pause()

    def remove(self, connection: Pausable) -> None:
        self._connections.discard(connection)

    def pause(self) -> None:
        """All at once: each that could bring one more buffer would be another quarter of a megabyte."""
        if not self.is_paused:
            self.is_paused = True
            self.num_pauses += 1
            for connection in self._connections:
                connection.pause()

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            for connection in self._connections:
                connection.resume()
