"""Turns the parts between optimizer steps into step records, as `step_order` decides.

A part has the form of a record (`recorder.StepWords`). A step is one part, or several in a row that are added up. This
is on the step path: a loop with one optimizer takes the first branch of `add` and writes its part as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from traceml_client.protocol.columns import IS_SKIPPED, NOT_MEASURED
from traceml_client.recorder import Recorder, StepWords
from traceml_client.step_order import NO_SOURCE, StepOrder

_DURATION = 7


class StepWriter:
    """Writes completed steps into the recorder, and knows how many there are."""

    __slots__ = ("_is_written", "_only", "_order", "_parts", "_recorder", "_source", "is_waiting", "num_steps")

    def __init__(self, recorder: Recorder, is_replacing: Callable[[int, Iterable[int]], bool]) -> None:
        self._recorder = recorder
        self._order = StepOrder(is_replacing)
        self._parts: list[StepWords] = []
        self._is_written = False
        self._only: int | None = None
        self._source = NO_SOURCE
        self.is_waiting = False
        """Parts are there that belong to a step which is not complete yet."""
        self.num_steps = 0

    def add(self, optimizer: int, source: int, part: StepWords) -> None:
        """An optimizer has stepped; `source` is the loader asked since the one before (see `StepOrder.stepped`)."""
        if optimizer == self._only:
            self._recorder.record_step(part)
            self.num_steps += 1
            self._source = source
        else:
            self._add_by_order(optimizer, source, part)

    def add_whole(self, part: StepWords) -> None:
        """A step whose end the script itself declared."""
        self.complete()
        self._recorder.record_step(part)
        self.num_steps += 1

    def see_batch(self, source: int) -> None:
        """A loader is asked for a batch while the writer `is_waiting`."""
        if self._order.is_boundary(source):
            self.complete()

    def complete(self) -> None:
        """Nothing more will join the open step: write it if that has not been done."""
        if self.is_waiting:
            self._write()

    def forget(self, optimizer: int) -> None:
        """See `StepOrder.forget`."""
        self._order.forget(optimizer)

    def _add_by_order(self, optimizer: int, source: int, part: StepWords) -> None:
        if self._only is not None:
            self._take_back_last()
        verdict = self._order.stepped(optimizer, source)
        if verdict.is_start:
            self.complete()
            if verdict.is_split:
                self._split()
            self._parts, self._is_written = [], False
        self._parts.append(part)
        self.is_waiting = not verdict.is_complete
        if verdict.is_complete:
            self._write()
        self._only = self._order.only

    def _take_back_last(self) -> None:
        """The step written last, on the short way, may have to be added to."""
        self._order.resume(self._source)
        last = self._recorder.last_step()
        self._parts, self._is_written = ([last] if last else []), True
        self._only = None

    def _write(self) -> None:
        self.is_waiting = False
        step = joined(self._parts)
        if self._is_written:
            self._recorder.amend_step(step)
            return
        self._recorder.record_step(step)
        self.num_steps += 1
        self._is_written = True

    def _split(self) -> None:
        """The last part is a step of its own."""
        if len(self._parts) > 1:
            self._recorder.amend_step(joined(self._parts[:-1]))
        self._recorder.record_step(self._parts[-1])
        self.num_steps += 1


def joined(parts: Sequence[StepWords]) -> StepWords:
    """One step from its parts, in order: skipped if all were, otherwise marked as any was; a null adds nothing."""
    if len(parts) == 1:
        return parts[0]
    flags = 0
    for part in parts:
        flags |= part[0] & ~IS_SKIPPED
    if all(part[0] & IS_SKIPPED for part in parts):
        flags |= IS_SKIPPED
    columns = list(zip(*parts, strict=True))
    input_wait, h2d, forward, backward, optimizer = (_total(column) for column in columns[2:_DURATION])
    return (flags, parts[-1][1], input_wait, h2d, forward, backward, optimizer, sum(columns[_DURATION]))


def _total(column: tuple[int, ...]) -> int:
    measured = [value for value in column if value != NOT_MEASURED]
    return sum(measured) if measured else NOT_MEASURED
