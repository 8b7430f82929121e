"""Turns the parts between optimizer steps into step records, as `step_order` decides.

A part has the form of a record (`recorder.StepWords`). A step is one part, or several in a row that are added up. A
loop with one optimizer comes here for its first three steps only; from then on the step clock writes its parts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from traceml_client.protocol.columns import (
    IS_SKIPPED,
    IS_UNUSUAL,
    IS_WARMUP,
    MAX_WAIT_LEVEL,
    NOT_MEASURED,
    wait_bits,
    wait_level,
)
from traceml_client.recorder import Recorder, StepWords
from traceml_client.step_order import StepOrder

_BACKWARD = 5
_DURATION = 7


class StepWriter:
    """Writes completed steps into the recorder. What adds to it returns how many steps became complete by that."""

    def __init__(self, recorder: Recorder, is_replacing: Callable[[int, Iterable[int]], bool]) -> None:
        self._recorder = recorder
        self._order = StepOrder(is_replacing)
        self._parts: list[StepWords] = []
        self._is_written = False
        self.is_waiting = False
        """Parts are there that belong to a step which is not complete yet."""

    @property
    def only(self) -> int | None:
        """The optimizer whose next part is a whole step: the caller may give it to the recorder itself."""
        return self._order.only

    def resume(self, source: int) -> None:
        """The caller has done so; the last of those steps, fed by this loader, may have to be added to."""
        self._order.resume(source)
        last = self._recorder.last_step()
        self._parts, self._is_written = ([last] if last else []), True

    def add(self, optimizer: int, source: int, part: StepWords) -> int:
        """An optimizer has stepped; `source` is the loader asked since the one before (see `StepOrder.stepped`)."""
        verdict = self._order.stepped(optimizer, source)
        num_steps = 0
        if verdict.is_start:
            num_steps += self.complete()
            if verdict.split:
                num_steps += self._split(verdict.split)
            self._parts, self._is_written = [], False
        self._parts.append(part)
        self.is_waiting = not verdict.is_complete
        return num_steps + (self._write() if verdict.is_complete else 0)

    def see_batch(self, source: int) -> int:
        """A loader is asked for a batch while the writer `is_waiting`."""
        return self.complete() if self._order.is_boundary(source) else 0

    def complete(self) -> int:
        """Nothing more will join the open step: write it if that has not been done."""
        return self._write() if self.is_waiting else 0

    def forget(self, optimizer: int) -> None:
        """See `StepOrder.forget`."""
        self._order.forget(optimizer)

    def _write(self) -> int:
        self.is_waiting = False
        step = joined(self._parts)
        if self._is_written:
            self._recorder.amend_step(step)
            return 0
        self._recorder.record_step(step)
        self._is_written = True
        return 1

    def _split(self, position: int) -> int:
        """The parts from there on are a step of their own."""
        self._recorder.amend_step(joined(self._parts[:position]))
        self._recorder.record_step(joined(self._parts[position:]))
        return 1


def joined(parts: Sequence[StepWords]) -> StepWords:
    """One step from its parts, in order: skipped if all were, otherwise marked as any was; a null adds nothing."""
    if len(parts) == 1:
        return parts[0]
    flags = waited = 0
    for part in parts:
        flags |= part[0] & (IS_WARMUP | IS_UNUSUAL)
        waited += max(0, wait_level(part[0]) - 1) * part[_BACKWARD] // MAX_WAIT_LEVEL
    if all(part[0] & IS_SKIPPED for part in parts):
        flags |= IS_SKIPPED
    columns = list(zip(*parts, strict=True))
    flags |= wait_bits(waited, sum(max(0, backward) for backward in columns[_BACKWARD]))
    input_wait, h2d, forward, backward, optimizer = (_total(column) for column in columns[2:_DURATION])
    return (flags, parts[-1][1], input_wait, h2d, forward, backward, optimizer, sum(columns[_DURATION]))


def _total(column: tuple[int, ...]) -> int:
    measured = [value for value in column if value != NOT_MEASURED]
    return sum(measured) if measured else NOT_MEASURED
