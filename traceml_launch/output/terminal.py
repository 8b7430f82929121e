"""Writes to a terminal or pipe from a thread of its own, so that a reader that stops reading stops nobody else.

The buffer is bounded: what does not fit is dropped and counted, and so is everything after the other end is closed.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import Final

MAX_BUFFERED_BYTES: Final = 8 << 20
"""Rides out a pager or a slow link for a while; small against what training itself needs."""
WRITE_BYTES: Final = 16 * 1024


class TerminalWriter:
    """One descriptor and its thread. `write` never blocks; the descriptor is the caller's and stays open."""

    def __init__(self, fd: int, *, max_buffered_bytes: int = MAX_BUFFERED_BYTES) -> None:
        self._fd = fd
        self._max_buffered_bytes = max_buffered_bytes
        self._pieces: deque[bytes] = deque()
        self._num_buffered_bytes = 0
        self._num_dropped_bytes = 0
        self._is_broken = False
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def num_dropped_bytes(self) -> int:
        return self._num_dropped_bytes

    def write(self, data: bytes) -> None:
        """Queue `data` as a whole, or drop it as a whole."""
        if not data:
            return
        with self._changed:
            is_full = self._num_buffered_bytes + len(data) > self._max_buffered_bytes
            if self._is_broken or self._is_closing or is_full:
                self._num_dropped_bytes += len(data)
                return
            self._pieces.append(data)
            self._num_buffered_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"terminal-{self._fd}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, *, stall_s: float) -> None:
        """Wait until everything is out, or until nothing moved for `stall_s`. Blocks the caller."""
        with self._changed:
            last = -1
            while self._num_buffered_bytes and not self._is_broken:
                if self._num_buffered_bytes == last and not self._changed.wait(stall_s):
                    return
                last = self._num_buffered_bytes

    def close(self, *, stall_s: float) -> None:
        """Flush and end the thread; what is left after a stall counts as dropped. Legal twice.

        A thread that is stuck in a write is left behind: it ends with the process, or when the reader reads again.
        """
        self.flush(stall_s=stall_s)
        with self._changed:
            self._is_closing = True
            self._discard()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(stall_s)

    def _run(self) -> None:
        while (piece := self._next_piece()) is not None:
            if not self._write_piece(piece):
                with self._changed:
                    self._is_broken = True
                    self._discard()
                    self._changed.notify_all()
                return

    def _next_piece(self) -> bytes | None:
        with self._changed:
            while not self._pieces:
                if self._is_closing:
                    return None
                self._changed.wait()
            return self._pieces[0]

    def _write_piece(self, piece: bytes) -> bool:
        """False: the other end is gone for good."""
        view = memoryview(piece)
        while view:
            try:
                num_written = os.write(self._fd, view[:WRITE_BYTES])
            except BlockingIOError:
                # Somebody made the shared descriptor non-blocking (ssh does); wait for it instead of spinning.
                select.select([], [self._fd], [], 1.0)
                continue
            except OSError:
                return False
            view = view[num_written:]
            with self._changed:
                if self._is_closing:
                    return True
                self._num_buffered_bytes -= num_written
                if not view:
                    self._pieces.popleft()
                self._changed.notify_all()
        return True

    def _discard(self) -> None:
        self._num_dropped_bytes += self._num_buffered_bytes
        self._num_buffered_bytes = 0
        self._pieces.clear()
