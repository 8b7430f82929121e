"""The step clock: divides a rank's time into phases and steps. Pure of torch; `torch_hooks` and `trace_step` feed it.

Every instant of a step belongs to exactly one phase, the innermost that is open: entering a phase books the time since
the last change on the phase that was open, leaving it books on the phase itself. So phases never overlap, and their sum
is never more than the step. What no phase claims is the residual.

A step begins where the one before ended, the first at the first event of any kind. It ends when the loop's optimizers
have stepped (`step_order`), or where a `trace_step()` block of the script ends, once the script has entered one.

One thread trains: the first that is seen, until another goes backward or steps an optimizer. Events of other threads (a
prefetcher's batches) are ignored. Nothing here locks or enters the kernel. A method that begins something returns what
the one that ends it must be given, or NOT_OURS: then it must not be called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Final

from traceml_client.protocol import ring
from traceml_client.protocol.columns import IS_SKIPPED, IS_UNUSUAL, IS_WARMUP, NOT_MEASURED
from traceml_client.recorder import Recorder, StepWords
from traceml_client.step_notes import StepNotes
from traceml_client.step_order import NO_SOURCE, never_replacing
from traceml_client.step_parts import StepWriter

INPUT_WAIT: Final = 1
H2D: Final = 2
FORWARD: Final = 3
BACKWARD: Final = 4
OPTIMIZER: Final = 5
RESIDUAL: Final = 6
"""Indices into `ring.RUNNING_PHASES`."""

NOT_OURS: Final = -1
IN_BACKWARD: Final = -1
"""Stands for all optimizers that step inside a backward."""
_NOBODY: Final = -1
_OFF: Final = -2


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
        "_has_stepped_inside",
        "_is_explicit",
        "_last_no_grad",
        "_now_ns",
        "_owner",
        "_phase",
        "_progress_at",
        "_progress_phase",
        "_recorder",
        "_since",
        "_source",
        "_start",
        "_wait_before",
        "_writer",
        "is_before_forward",
        "is_in_optimizer",
        "notes",
        "spent",
        "step",
    )

    def __init__(
        self,
        recorder: Recorder,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        is_replacing: Callable[[int, Iterable[int]], bool] = never_replacing,
    ) -> None:
        self._recorder = recorder
        self._now_ns = now_ns
        self._writer = StepWriter(recorder, is_replacing)
        self._progress_phase, self._progress_at = recorder.progress_phase, recorder.progress_at
        self.notes = StepNotes(recorder)
        self._owner = _NOBODY
        self.step = 1
        """The step in progress."""
        self.spent = [0] * len(ring.RUNNING_PHASES)
        """Nanoseconds in each phase since the last optimizer step."""
        self.is_before_forward = True
        """No model has been called since the last batch or step: what moves between devices now is the batch."""
        self.is_in_optimizer = False
        self._phase = RESIDUAL
        self._since = self._start = 0
        self._flags = IS_WARMUP
        self._source = NO_SOURCE
        self._wait_before = 0
        self._before_optimizer = RESIDUAL
        self._has_stepped_inside = False
        self._is_explicit = False
        self._depth = 0
        self._last_no_grad = 0

    # --- phases ---------------------------------------------------------------------------------------------------

    def enter(self, phase: int) -> int:
        """A phase begins. Returns what `leave` needs, or NOT_OURS."""
        if get_ident() != self._owner and not self._take_over(phase):
            return NOT_OURS
        before = self._phase
        now = self._now_ns()
        self.spent[before] += now - self._since
        self._since = now
        self._phase = phase
        self._progress_phase[0] = phase
        self._progress_at[0] = now
        return before

    def leave(self, before: int) -> None:
        """The phase that was entered last ends."""
        now = self._now_ns()
        self.spent[self._phase] += now - self._since
        self._since = now
        self._phase = before
        self._progress_phase[0] = before
        self._progress_at[0] = now

    def leave_unclaimed(self, before: int) -> None:
        """It turned out to be nothing of its kind: its time goes to the phase around it."""
        self._phase = before
        self.leave(before)

    def leave_raising(self, before: int) -> None:
        """It ends by an exception: the progress words keep it, so that an error record names the phase it arose in."""
        now = self._now_ns()
        self.spent[self._phase] += now - self._since
        self._since = now
        self._phase = before

    def enter_input(self, source: int) -> int:
        """A batch is requested; `source` identifies the loader."""
        before = self.enter(INPUT_WAIT)
        if before != NOT_OURS:
            self._wait_before = self.spent[INPUT_WAIT]
            self._source = source
            self.is_before_forward = True
            if self._writer.is_waiting:
                self._writer.see_batch(source)
                self._count_steps(self._since)
        return before

    def enter_forward(self) -> int:
        """A root module is called with gradients enabled."""
        self.is_before_forward = False
        return self.enter(FORWARD)

    def enter_backward(self) -> int:
        """Gradients are computed."""
        before = self.enter(BACKWARD)
        if self.step == 1 and before != NOT_OURS:
            self.notes.see_backward()
        return before

    def leave_backward(self, before: int) -> None:
        self.leave(before)
        if self._has_stepped_inside and before != BACKWARD:
            self._has_stepped_inside = False
            self._end_part(IN_BACKWARD, self._since)

    # --- what ends a step -----------------------------------------------------------------------------------------

    def begin_optimizer(self) -> None:
        """An optimizer's outermost `step()` begins. One that was left by an exception ended where the next began."""
        if self._phase == BACKWARD:
            self._has_stepped_inside = True
            return
        if self.is_in_optimizer and get_ident() == self._owner:
            self.abandon_optimizer()
        before = self.enter(OPTIMIZER)
        if before != NOT_OURS:
            self._before_optimizer = before
            self.is_in_optimizer = True

    def abandon_optimizer(self) -> None:
        """The `step()` that began last was left by an exception some time ago."""
        self.is_in_optimizer = False
        self._phase = RESIDUAL

    def end_optimizer(self, optimizer: int, *, is_skipped: bool = False) -> None:
        """It returned; `is_skipped` where a GradScaler held the update back. Nothing to do inside a backward."""
        if not self.is_in_optimizer or get_ident() != self._owner:
            return
        self.leave(self._before_optimizer)
        self.is_in_optimizer = False
        if is_skipped:
            self._flags |= IS_SKIPPED
        self._end_part(optimizer, self._since)

    def begin_block(self) -> None:
        """The script enters a `trace_step()` block: from now on only blocks are steps. Inner blocks count nothing."""
        if self._depth == 0:
            self._is_explicit = True
            self._writer.complete()
            self.notes.see_block()
            if get_ident() != self._owner:
                self._take_over(OPTIMIZER)
        self._depth += 1

    def end_block(self, *, is_completed: bool) -> None:
        """It leaves it; a block left by an exception is no step."""
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and is_completed and get_ident() == self._owner:
            self.leave(self._phase)
            self._writer.add_whole(self._take_part(self._since))
            self._count_steps(self._since)

    def finish(self, *, has_error: bool) -> None:
        """Training is over. Without an error, the optimizers that have stepped since the last step made one more."""
        if not has_error:
            self._writer.complete()

    # --- what marks a step ----------------------------------------------------------------------------------------

    def see_no_grad(self, *, is_eval: bool) -> None:
        """A root module is called without gradients: validation, unless a training module is so called every step."""
        if get_ident() != self._owner:
            return
        if is_eval or self._last_no_grad < self.step - 1 > 1:
            self._flags |= IS_UNUSUAL
            self.spent[INPUT_WAIT] = min(self.spent[INPUT_WAIT], self._wait_before)
        self._last_no_grad = self.step

    def see_checkpoint(self) -> None:
        """Something is saved."""
        if get_ident() == self._owner:
            self._flags |= IS_UNUSUAL

    def see_compilation(self) -> None:
        """Something is compiled, in whatever thread: this step says nothing about the next."""
        self._flags |= IS_WARMUP

    def switch_off(self) -> None:
        """In a forked child, or after too many errors of ours: from now on every event is ignored."""
        self._owner = _OFF
        self.is_in_optimizer = False

    def forget_optimizer(self, optimizer: int) -> None:
        """See `StepOrder.forget`."""
        self._writer.forget(optimizer)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _take_over(self, phase: int) -> bool:
        """Whether an event of a thread that is not known to train is one of training after all."""
        if self._owner == _OFF or phase == H2D:
            return False
        if self._owner == _NOBODY:
            self._since = self._start = self._now_ns()
            self._recorder.set_progress(RESIDUAL, self.step, self._start)
        else:
            is_proven = self.spent[BACKWARD] > 0 or self.spent[OPTIMIZER] > 0 or self.step > 1
            if phase not in (BACKWARD, OPTIMIZER) or (is_proven and self._phase != RESIDUAL):
                return False
            self._phase = RESIDUAL
        self._owner = get_ident()
        return True

    def _end_part(self, optimizer: int, now: int) -> None:
        if not self._is_explicit:
            source = self._source
            self._source = NO_SOURCE
            self._writer.add(optimizer, source, self._take_part(now))
            self._count_steps(now)

    def _take_part(self, now: int) -> StepWords:
        spent = self.spent
        part = (
            self._flags,
            now,
            spent[INPUT_WAIT] or NOT_MEASURED,
            spent[H2D],
            spent[FORWARD] or NOT_MEASURED,
            spent[BACKWARD] or NOT_MEASURED,
            spent[OPTIMIZER] or NOT_MEASURED,
            now - self._start,
        )
        self.spent = [0] * len(spent)
        self._flags = 0
        self._start = now
        self.is_before_forward = True
        return part

    def _count_steps(self, now: int) -> None:
        num_steps = self._writer.num_steps
        if num_steps >= self.step and not num_steps & (num_steps - 1):
            self.notes.explain(num_steps)
        self.step = num_steps + 1
        self._recorder.set_progress(self._phase, num_steps + 1, now)
