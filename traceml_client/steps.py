"""This process's step clock: made once, fed by hooks, and by `trace_step()` where a script declares its steps itself.

A boundary: an error of ours in here, or in a hook, is reported and goes no further; after several, measuring stops.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final

from traceml_client.protocol.ring import RingReader
from traceml_client.recorder import Recorder
from traceml_client.step_clock import StepClock
from traceml_client.step_order import never_replacing

ReportFault = Callable[[str, BaseException], None]
"""Takes what failed, in words, and the error. Never raises."""

MAX_FAULTS: Final = 8
"""A hook that fails once may be unlucky; one that fails every step costs time and measures nothing."""


class Measuring:
    """The step clock and the limit of its errors."""

    __slots__ = ("_num_faults", "clock", "reader", "report")

    def __init__(self, clock: StepClock, reader: RingReader, report_fault: ReportFault) -> None:
        self.clock = clock
        self.reader = reader
        """Of the recorder that the clock writes."""
        self.report = report_fault
        self._num_faults = 0

    def fault(self, kind: str, error: BaseException) -> None:
        """Report an error of ours; too many of them switch the clock off."""
        self._num_faults += 1
        self.report(kind, error)
        if self._num_faults == MAX_FAULTS:
            self.clock.switch_off()


_measuring: Measuring | None = None


def start(
    recorder: Recorder,
    report_fault: ReportFault,
    *,
    is_replacing: Callable[[int, Iterable[int]], bool] = never_replacing,
) -> Measuring:
    """Make the clock that `trace_step()` feeds. In a forked child it is off: a child is not the rank.

    Args:
        is_replacing: see `step_order.StepOrder`.
    """
    global _measuring
    _measuring = measuring = Measuring(StepClock(recorder, is_replacing=is_replacing), recorder.reader, report_fault)
    os.register_at_fork(after_in_child=measuring.clock.switch_off)
    return measuring


def finish(*, has_error: bool) -> None:
    """Training is over, before the marker is set: complete what is open, and record nothing more."""
    if _measuring is not None:
        try:
            _measuring.clock.finish(has_error=has_error)
            _measuring.clock.switch_off()
        except Exception as error:  # noqa: BLE001 - the boundary
            _measuring.fault("the end of the last step", error)


def ask_recorder(kind: str, question: Callable[[RingReader], dict[str, float]]) -> dict[str, float]:
    """What `question` finds in this process's recorder; empty where nothing is measured, or where it fails."""
    if _measuring is not None:
        try:
            return question(_measuring.reader)
        except Exception as error:  # noqa: BLE001 - the boundary
            _measuring.report(kind, error)
    return {}


class _TraceStep:
    __slots__ = ()

    def __enter__(self) -> None:
        if _measuring is not None:
            try:
                _measuring.clock.begin_block()
            except Exception as error:  # noqa: BLE001 - the boundary
                _measuring.fault("trace_step", error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _measuring is not None:
            try:
                _measuring.clock.end_block(is_completed=kind is None)
            except Exception as own_error:  # noqa: BLE001 - the boundary
                _measuring.fault("trace_step", own_error)


_TRACE_STEP = _TraceStep()


def trace_step() -> _TraceStep:
    """Declare a step by hand: `with trace_step(): ...` around the body of the loop.

    Only loops without a torch optimizer need it. Once used, steps are these blocks and nothing else; a step still
    begins where the one before it ended, so that waiting for the batch belongs to it. A block left by an exception is
    no step; inner blocks count nothing. Does nothing where telemetry is off. Never raises.
    """
    return _TRACE_STEP
