"""The step clock: divides a rank's time into phases and steps. Pure of torch; `torch_hooks` and `trace_step` feed it.

Every instant of a step belongs to exactly one phase, the innermost that is open: entering a phase books the time since
the last change on the phase that was open, leaving it books on the phase itself. So phases never overlap, whatever the
order of events, and their sum is never more than the step. What no phase claims is the residual.

A step begins where the one before ended, the first at the first event of any kind. It ends when the loop's optimizers
have stepped (`step_order`), or where a `trace_step()` block of the script ends, once the script has entered one.

One thread trains: the one that steps optimizers or declares blocks; before the first step, the first that asks for a
batch. Batches that another thread asks for (a prefetcher) are not waited for and so not counted.

This is the step path: between the kernels of a step everything is cold, so what counts is how few functions and objects
are touched. Nothing here locks or enters the kernel, and some lines stand twice that could be a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Final

from traceml_client.phases import BACKWARD, FORWARD, INPUT_WAIT, NOT_OURS, OPTIMIZER, RESIDUAL
from traceml_client.protocol.columns import IS_SKIPPED, IS_UNUSUAL, IS_WARMUP, NOT_MEASURED
from traceml_client.recorder import Recorder, StepWords
from traceml_client.step_notes import StepNotes
from traceml_client.step_order import NO_SOURCE, never_replacing
from traceml_client.step_parts import StepWriter

IN_BACKWARD: Final = -1
"""Stands for all optimizers that step inside a backward."""
_NOBODY: Final = -1
_OFF: Final = -2
_NONE: Final = 0


class StepClock:
    """Phases and steps of one rank, written into its recorder as they complete.

    Args:
        recorder: where steps and progress go.
        now_ns: a monotonic clock in nanoseconds.
        is_replacing: see `StepOrder`.
    """

    __slots__ = (
        "_before_optimizer",
        "_depth",
        "_flags",
        "_forward_mark",
        "_is_explicit",
        "_last_no_grad",
        "_now_ns",
        "_owner",
        "_phase",
        "_progress_at",
        "_progress_phase",
        "_progress_step",
        "_real_now_ns",
        "_since",
        "_source",
        "_start",
        "_wait_mark",
        "_writer",
        "has_stepped_inside",
        "notes",
        "spent",
        "step",
        "stepping",
    )

    def __init__(
        self,
        recorder: Recorder,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        is_replacing: Callable[[int, Iterable[int]], bool] = never_replacing,
    ) -> None:
        self._real_now_ns = now_ns
        self._now_ns = self._first_now_ns
        self._writer = StepWriter(recorder, is_replacing)
        self._progress_phase, self._progress_step, self._progress_at = recorder.progress_views()
        self.notes = StepNotes(recorder)
        self._owner = _NOBODY
        self.step = 1
        """The step in progress."""
        self.spent = [0, 0, 0, 0, 0, 0, 0]
        """Nanoseconds since the last optimizer step, by phase; an index is free."""
        self.stepping = _NONE
        """The optimizer whose `step()` is running."""
        self.has_stepped_inside = False
        """An optimizer has stepped inside the backward that is running."""
        self._phase = RESIDUAL
        self._since = self._start = 0
        self._flags = IS_WARMUP
        self._source = NO_SOURCE
        self._wait_mark = self._forward_mark = 0
        self._before_optimizer = RESIDUAL
        self._is_explicit = False
        self._depth = self._last_no_grad = 0

    # --- phases ---------------------------------------------------------------------------------------------------

    def enter(self, phase: int) -> int:
        """A phase begins. Returns the phase that was open, which `leave` needs."""
        before = self._phase
        now = self._now_ns()
        self.spent[before] += now - self._since
        self._since = now
        self._phase = phase
        self._progress_phase[0] = phase
        self._progress_at[0] = now
        return before

    def leave(self, before: int) -> None:
        """The phase that was entered last ends, and the one before it goes on."""
        now = self._now_ns()
        self.spent[self._phase] += now - self._since
        self._since = now
        self._phase = before
        self._progress_phase[0] = before

    def leave_unclaimed(self, before: int) -> None:
        """It turned out to be nothing of its kind: its time goes to the phase around it."""
        self._phase = before
        self.leave(before)

    def leave_raising(self, before: int) -> None:
        """It ends by an exception: the progress words keep it, so that an error record names the phase it arose in."""
        raised_in = self._phase
        self.leave(before)
        self._progress_phase[0] = raised_in

    def enter_input(self, source: int) -> int:
        """A batch is asked for; `source` identifies the loader. NOT_OURS where another thread trains."""
        if get_ident() != self._owner:
            if self._owner != _NOBODY:
                return NOT_OURS
            self._owner = get_ident()
        before = self.enter(INPUT_WAIT)
        self._wait_mark = self.spent[INPUT_WAIT]
        self._forward_mark = self.spent[FORWARD]
        self._source = source
        if self._writer.is_waiting:
            self._writer.see_batch(source)
            self._count_steps()
        return before

    def is_moving_batch(self) -> bool:
        """Training has begun and no model was called since the last batch or step: what moves now is the batch."""
        return self._start != 0 and self._forward_mark == self.spent[FORWARD] and get_ident() == self._owner

    # --- what ends a step -----------------------------------------------------------------------------------------

    def begin_optimizer(self, optimizer: int) -> None:
        """An optimizer's outermost `step()` begins. One that was left by an exception ended where this one begins."""
        if self._phase == BACKWARD:
            self.has_stepped_inside = True
            return
        if get_ident() != self._owner and not self._take_over():
            return
        if self.stepping:
            self._flags |= IS_UNUSUAL
            self._phase = RESIDUAL
        self.stepping = optimizer
        self._before_optimizer = self.enter(OPTIMIZER)

    def end_optimizer(self, optimizer: int) -> None:
        """It returned. Nothing to do where `begin_optimizer` did nothing."""
        if optimizer != self.stepping:
            return
        self.stepping = _NONE
        now = self._now_ns()
        self.spent[OPTIMIZER] += now - self._since
        self._since = now
        self._phase = before = self._before_optimizer
        self._progress_phase[0] = before
        if not self._is_explicit:
            self._end_part(optimizer)

    def end_skipped(self, optimizer: int) -> None:
        """It returned, but a GradScaler held the update back."""
        if optimizer == self.stepping:
            self._flags |= IS_SKIPPED
            self.end_optimizer(optimizer)

    def end_backward(self) -> None:
        """Optimizers have stepped inside the backward that was just left: they belong to its step."""
        self.has_stepped_inside = False
        if self._phase != BACKWARD and not self._is_explicit and self._owner != _OFF:
            self._end_part(IN_BACKWARD)

    def begin_block(self) -> None:
        """The script enters a `trace_step()` block: from now on only blocks are steps. Inner blocks count nothing."""
        if self._depth == 0 and (get_ident() == self._owner or self._take_over()):
            self._is_explicit = True
            self._writer.complete()
            self.notes.see_block()
            self.leave(self._phase)
        self._depth += 1

    def end_block(self, *, is_completed: bool) -> None:
        """It leaves it; a block left by an exception is no step."""
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and is_completed and get_ident() == self._owner:
            self.leave(self._phase)
            self._writer.add_whole(self._take_part())
            self._count_steps()

    def finish(self, *, has_error: bool) -> None:
        """Training is over. Without an error, the optimizers that have stepped since the last step made one more."""
        if not has_error:
            self._writer.complete()
            self._count_steps()
        self.notes.explain(self._writer.num_steps)

    # --- what marks a step ----------------------------------------------------------------------------------------

    def see_no_grad(self, *, is_eval: bool) -> None:
        """A root module is called without gradients: validation, unless a training module is so called every step."""
        if get_ident() != self._owner:
            return
        if is_eval or self._last_no_grad < self.step - 1 > 1:
            self._flags |= IS_UNUSUAL
            self.spent[INPUT_WAIT] = min(self.spent[INPUT_WAIT], self._wait_mark)
        self._last_no_grad = self.step

    def see_checkpoint(self) -> None:
        """Something is saved."""
        if get_ident() == self._owner:
            self._flags |= IS_UNUSUAL

    def see_compilation(self) -> None:
        """Something is compiled, in whatever thread: this step says nothing about the next."""
        self._flags |= IS_WARMUP

    def switch_off(self) -> None:
        """In a forked child, or after too many errors of ours: nothing is written from now on, nothing can fail."""
        self._owner, self.stepping, self._now_ns = _OFF, _NONE, int
        scratch = memoryview(bytearray(8))
        self._progress_phase, self._progress_step, self._progress_at = scratch, scratch.cast("Q"), scratch.cast("Q")

    def forget_optimizer(self, optimizer: int) -> None:
        """See `StepOrder.forget`."""
        self._writer.forget(optimizer)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _first_now_ns(self) -> int:
        """Stands for the clock until the first event: there the first step begins."""
        self._now_ns = self._real_now_ns
        self._start = self._since = now = self._real_now_ns()
        self._progress_step[0] = 1
        return now

    def _take_over(self) -> bool:
        """The calling thread steps an optimizer: it is the one that trains, if none is inside a step."""
        if self._owner == _OFF or self.stepping:
            return False
        if self._owner != _NOBODY:
            self.spent[INPUT_WAIT] = 0
        self._owner = get_ident()
        return True

    def _end_part(self, optimizer: int) -> None:
        source = self._source
        self._source = NO_SOURCE
        self._writer.add(optimizer, source, self._take_part())
        self._count_steps()

    def _take_part(self) -> StepWords:
        """What was measured since the last one, ending at the last change of phase."""
        _, input_wait, h2d, forward, backward, optimizer, _ = self.spent
        now = self._since
        part = (
            self._flags,
            now,
            input_wait or NOT_MEASURED,
            h2d,
            forward or NOT_MEASURED,
            backward or NOT_MEASURED,
            optimizer or NOT_MEASURED,
            now - self._start,
        )
        self.spent = [0, 0, 0, 0, 0, 0, 0]
        self._flags = 0
        self._start = now
        self._forward_mark = 0
        return part

    def _count_steps(self) -> None:
        num_steps = self._writer.num_steps
        if num_steps >= self.step:
            self.step = step = num_steps + 1
            self._progress_step[0] = step
            self._progress_at[0] = self._since
            if not num_steps & (num_steps - 1):
                self.notes.explain(num_steps)
