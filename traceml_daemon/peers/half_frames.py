"""Frames that have begun and not ended: what they may hold in memory, all together, and for how long.

One of them is bounded by the frame limit, but a thousand of a megabyte each would not be. A peer that is cut off here
and honest (it was stopped in the middle of a frame) connects again and resends; nothing of it is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceml_daemon.clock import Clock, Timer

if TYPE_CHECKING:
    from traceml_daemon.peers.connection import Connection

MAX_BYTES: Final = 64 << 20
"""Of all connections together: 8,192 ranks with 8 KB each."""
MAX_AGE_S: Final = 30.0
"""For one frame to arrive: the largest one needs 35 KB/s."""
_LOOK_S: Final = 5.0


class HalfFrames:
    """What each connection holds of a frame, told by the connections themselves."""

    def __init__(self, clock: Clock, *, max_bytes: int = MAX_BYTES) -> None:
        self.num_bytes = 0
        self._clock = clock
        self.max_bytes = max_bytes
        self._since: dict[Connection, float] = {}
        """When the frame began that is not whole yet."""
        self._timer: Timer | None = None

    def changed(self, connection: Connection, before: int, now: int, *, is_another: bool) -> None:
        """A connection held `before` bytes and holds `now`; `is_another`: of a frame that began since then."""
        self.num_bytes += now - before
        if not now:
            self._since.pop(connection, None)
            return
        if is_another or connection not in self._since:
            self._since[connection] = self._clock.now_s()
        if self._timer is None:
            self._timer = self._clock.call_at(self._clock.now_s() + _LOOK_S, self._look)
        if self.num_bytes > self.max_bytes:
            connection.reject("too_many_bytes", "the aggregator holds too much of frames that do not end")

    def close(self) -> None:
        """Legal twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now_s = self._clock.now_s()
        for connection, since_s in tuple(self._since.items()):
            if now_s - since_s > MAX_AGE_S:
                connection.reject("stalled_frame", f"a frame took longer than {MAX_AGE_S:g} s")
        if self._since:
            self._timer = self._clock.call_at(now_s + _LOOK_S, self._look)
