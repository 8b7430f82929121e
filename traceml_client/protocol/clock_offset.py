"""The daemon's clock minus ours, measured by pings."""

from __future__ import annotations

_MAX_AGE_NS = 60_000_000_000
"""Clocks drift by up to some 50 us/s: after a minute a newer measurement is better than a tighter one."""


class ClockOffset:
    """Keeps the measurement with the smallest bound of the last minute.

    The daemon read its clock between our sending and our receiving: the middle is wrong by at most half the round trip.
    """

    __slots__ = ("_measured_ns", "bound_ns", "offset_ns")

    def __init__(self) -> None:
        self.offset_ns = 0
        self.bound_ns = -1
        """-1 before the first measurement."""
        self._measured_ns = 0

    def measure(self, *, sent_ns: int, daemon_ns: int, received_ns: int) -> None:
        """Take one round trip; one that ended before it began is of no use."""
        if received_ns < sent_ns:
            return
        bound_ns = (received_ns - sent_ns + 1) // 2
        if self.bound_ns < 0 or bound_ns <= self.bound_ns or received_ns - self._measured_ns > _MAX_AGE_NS:
            self.offset_ns = daemon_ns - (sent_ns + received_ns) // 2
            self.bound_ns = bound_ns
            self._measured_ns = received_ns
