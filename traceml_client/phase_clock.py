"""Divides a rank's time into phases. Pure of torch.

Every instant belongs to exactly one phase, the innermost that is open: entering a phase books the time since the last
change on the phase that was open, leaving it books on the phase itself. So phases never overlap, whatever the order of
events, and their sum is never more than the time they divide. What no phase claims is the residual; it is not booked.

This is the step path: between the kernels of a step everything is cold, so what counts is how few functions and objects
are touched: 15 ns a bytecode. Nothing here locks or enters the kernel, some lines stand twice that could be a call, and
the hooks on optimizers do the regular case with the fields of the clock themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from traceml_client.phases import RESIDUAL
from traceml_client.protocol.columns import IS_WARMUP, wait_bits
from traceml_client.recorder import Recorder, StepWords


class PhaseClock:
    """The phases of one rank since the last optimizer step, and the phase in progress in its recorder.

    Args:
        recorder: where the phase in progress is written.
        now_ns: a monotonic clock in nanoseconds.
    """

    __slots__ = (
        "_forward_mark",
        "_real_now_ns",
        "_recorder",
        "_ring",
        "flags",
        "now_ns",
        "phase",
        "phase_view",
        "since",
        "spent",
        "start",
    )

    def __init__(self, recorder: Recorder, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._recorder = recorder
        self.phase_view = recorder.phase_view()
        self._ring = (recorder.memory, recorder.words, recorder.step_capacity)
        self._real_now_ns = now_ns
        self.now_ns = self._first_now_ns
        self.spent = [0, 0, 0, 0, 0, 0, 0]
        """Nanoseconds by number of `phases`; the last is free."""
        self.phase = RESIDUAL
        """The innermost that is open; also in `phase_view`, for who looks at the recorder."""
        self.since = self.start = 0
        """When the phase last changed, and when the step began; 0 before the first event."""
        self.flags = IS_WARMUP
        """Of the step in progress, see `protocol.columns`."""
        self._forward_mark = 0

    def enter(self, phase: int) -> int:
        """A phase begins. Returns the phase that was open, which `leave` needs."""
        now_ns = self.now_ns  # calling a slot would look it up in the class every time
        now = now_ns()
        before = self.phase
        if before != RESIDUAL:
            self.spent[before] += now - self.since
        self.since = now
        self.phase = phase
        self.phase_view[0] = phase
        return before

    def leave(self, before: int) -> None:
        """The phase that was entered last ends, and the one before it goes on."""
        now_ns = self.now_ns
        now = now_ns()
        self.spent[self.phase] += now - self.since
        self.since = now
        self.phase = before
        self.phase_view[0] = before

    def leave_unclaimed(self, before: int) -> None:
        """It turned out to be nothing of its kind: its time goes to the phase around it."""
        self.phase = before
        self.leave(before)

    def leave_raising(self, before: int) -> None:
        """It ends by an exception: the progress words keep it, so that an error record names the phase it arose in."""
        raised_in = self.phase
        self.leave(before)
        self.phase_view[0] = raised_in

    def _take_part(self) -> StepWords:
        """What was measured since the last one, ending at the last change of phase. -1 is NOT_MEASURED."""
        now = self.since
        waited, wait, h2d, forward, backward, optimizer, _ = self.spent
        flags = self.flags | wait_bits(waited, backward)
        part = (flags, now, wait or -1, h2d, forward or -1, backward or -1, optimizer or -1, now - self.start)
        self.spent = [0, 0, 0, 0, 0, 0, 0]
        self.flags = self._forward_mark = 0
        self.start = now
        return part

    def _stop(self) -> None:
        """Write nothing any more, and ask no clock that could fail."""
        self.now_ns = int
        self.phase_view = memoryview(bytearray(1))

    def _first_now_ns(self) -> int:
        """Stands for the clock until the first event: there the first step begins."""
        self.now_ns = self._real_now_ns
        self.start = self.since = now = self._real_now_ns()
        self._recorder.set_progress(self.phase, 1, now)
        return now
