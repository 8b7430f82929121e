"""Divides a rank's time into phases. Pure of torch.

Every instant belongs to exactly one phase, the innermost that is open: entering a phase books the time since the last
change on the phase that was open, leaving it books on the phase itself. So phases never overlap, whatever the order of
events, and their sum is never more than the time they divide. What no phase claims is the residual; it is not booked.

This is the step path: between the kernels of a step everything is cold, so what counts is how few functions and objects
are touched. Nothing here locks or enters the kernel, and some lines stand twice that could be a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from traceml_client.phases import RESIDUAL
from traceml_client.protocol.columns import IS_WARMUP
from traceml_client.recorder import Recorder


class PhaseClock:
    """The phases of one rank since the last optimizer step, and the phase in progress in its recorder.

    Args:
        recorder: where the phase in progress is written.
        now_ns: a monotonic clock in nanoseconds.
    """

    __slots__ = (
        "_flags",
        "_forward_mark",
        "_now_ns",
        "_phase",
        "_phase_view",
        "_real_now_ns",
        "_recorder",
        "_since",
        "_start",
        "spent",
    )

    def __init__(self, recorder: Recorder, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._recorder = recorder
        self._phase_view = recorder.phase_view()
        self._real_now_ns = now_ns
        self._now_ns = self._first_now_ns
        self.spent = [0, 0, 0, 0, 0, 0, 0]
        """Nanoseconds by number of `phases`; the last is free."""
        self._phase = RESIDUAL
        self._since = self._start = 0
        self._flags = IS_WARMUP
        self._forward_mark = 0

    def enter(self, phase: int) -> int:
        """A phase begins. Returns the phase that was open, which `leave` needs."""
        now = self._now_ns()
        before = self._phase
        if before != RESIDUAL:
            self.spent[before] += now - self._since
        self._since = now
        self._phase = phase
        self._phase_view[0] = phase
        return before

    def leave(self, before: int) -> None:
        """The phase that was entered last ends, and the one before it goes on."""
        now = self._now_ns()
        self.spent[self._phase] += now - self._since
        self._since = now
        self._phase = before
        self._phase_view[0] = before

    def leave_unclaimed(self, before: int) -> None:
        """It turned out to be nothing of its kind: its time goes to the phase around it."""
        self._phase = before
        self.leave(before)

    def leave_raising(self, before: int) -> None:
        """It ends by an exception: the progress words keep it, so that an error record names the phase it arose in."""
        raised_in = self._phase
        self.leave(before)
        self._phase_view[0] = raised_in

    def _stop(self) -> None:
        """Write nothing any more, and ask no clock that could fail."""
        self._now_ns = int
        self._phase_view = memoryview(bytearray(1))

    def _first_now_ns(self) -> int:
        """Stands for the clock until the first event: there the first step begins."""
        self._now_ns = self._real_now_ns
        self._start = self._since = now = self._real_now_ns()
        self._recorder.set_progress(self._phase, 1, now)
        return now
