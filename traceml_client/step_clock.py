"""The step clock: where a rank's steps begin and end. Pure of torch; `torch_hooks` and `trace_step` feed it.

A step begins where the one before ended, the first at the first event of any kind. It ends when the loop's optimizers
have stepped (`step_order`), or where a `trace_step()` block of the script ends, once the script has entered one.

One thread trains: the one that steps optimizers or declares blocks; before the first step, the first that asks for a
batch. Batches that another thread asks for (a prefetcher) are not waited for and so not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Final

from traceml_client.phase_clock import PhaseClock
from traceml_client.phases import BACKWARD, FORWARD, INPUT_WAIT, NOT_OURS, OPTIMIZER, RESIDUAL, WAITED
from traceml_client.protocol.columns import IS_SKIPPED, IS_UNUSUAL, IS_WARMUP, RECORD_BYTES, wait_bits
from traceml_client.recorder import FIRST_SLOT, STEP_HEAD, Recorder, pack_record
from traceml_client.step_notes import StepNotes
from traceml_client.step_order import NO_SOURCE, never_replacing
from traceml_client.step_parts import StepWriter

NO_OPTIMIZER: Final = 0
IN_BACKWARD: Final = -1
"""Stands for all optimizers that step inside a backward."""
_NOBODY: Final = -1
_OFF: Final = -2


class StepClock(PhaseClock):
    """Phases and steps of one rank, written into its recorder as they complete.

    Args:
        recorder: where steps and progress go.
        now_ns: a monotonic clock in nanoseconds.
        is_replacing: see `StepOrder`.
    """

    __slots__ = (
        "_before_optimizer",
        "_depth",
        "_is_explicit",
        "_is_proven",
        "_last_no_grad",
        "_last_source",
        "_next_occasion",
        "_owner",
        "_source",
        "_wait_mark",
        "_was_alone",
        "_writer",
        "alone",
        "has_stepped_inside",
        "notes",
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
        super().__init__(recorder, now_ns=now_ns)
        self._writer = StepWriter(recorder, is_replacing)
        self.notes = StepNotes(recorder)
        self.step = 1
        """The step in progress."""
        self.stepping = NO_OPTIMIZER
        """The optimizer whose `step()` is running, or something that is none while its end is not to be seen."""
        self.has_stepped_inside = False
        """An optimizer has stepped inside the backward that is running."""
        self._owner = _NOBODY
        self._is_proven = self._is_explicit = False
        self.alone = NO_OPTIMIZER
        """The optimizer each of whose `step()`s is a whole, recorded step; none while anything irregular happens."""
        self._was_alone = False
        """It was, after the last step that the writer was told of."""
        self._source = self._last_source = NO_SOURCE
        self._before_optimizer, self._next_occasion = RESIDUAL, 2
        self._depth = self._last_no_grad = self._wait_mark = 0

    # --- what ends a step -----------------------------------------------------------------------------------------

    def begin_optimizer(self, optimizer: int) -> None:
        """An optimizer's outermost `step()` begins."""
        now_ns = self.now_ns  # calling a slot would look it up in the class every time
        now = now_ns()
        if optimizer == self.alone and self.phase == RESIDUAL and not self.stepping:
            self.stepping = optimizer
            self.since = now
            self.phase = self.phase_view[0] = OPTIMIZER
            return
        if (self.phase != RESIDUAL or self.stepping or not self._is_proven) and not self._may_begin():
            return
        self.alone = NO_OPTIMIZER
        self._before_optimizer = before = self.phase
        self.spent[before] += now - self.since
        self.stepping = optimizer
        self.since, self.phase, self.phase_view[0] = now, OPTIMIZER, OPTIMIZER

    def end_optimizer(self, optimizer: int) -> None:
        """It returned. Nothing to do where `begin_optimizer` did nothing."""
        if optimizer == self.stepping == self.alone:
            self.end_alone()
        elif optimizer == self.stepping:
            self.stepping = NO_OPTIMIZER
            self.leave(self._before_optimizer)
            self._end_part(optimizer)

    def end_alone(self) -> None:
        """The regular case: `alone` returned, begun where nothing was open. Writes as `Recorder.record_step` does."""
        now_ns = self.now_ns
        now = now_ns()
        self.stepping = NO_OPTIMIZER
        self.phase = self.phase_view[0] = RESIDUAL
        waited, wait, h2d, forward, backward, ours, _ = self.spent
        ours += now - self.since
        flags = self.flags | wait_bits(waited, backward) if waited else self.flags
        memory, words, capacity = self._ring
        count = words[STEP_HEAD]
        slot = FIRST_SLOT + RECORD_BYTES * (count % capacity)
        pack_record(memory, slot, flags, now, wait or -1, h2d, forward or -1, backward or -1, ours, now - self.start)
        words[STEP_HEAD] = count + 1
        self.start = self.since = now
        self.spent = [0, 0, 0, 0, 0, 0, 0]
        self.flags = self._forward_mark = 0
        self._last_source, self._source = self._source, NO_SOURCE
        self.step = step = self.step + 1
        if step >= self._next_occasion:
            self._mark_occasion()

    def end_skipped(self, optimizer: int) -> None:
        """It returned, but a GradScaler held the update back."""
        if optimizer == self.stepping:
            self.flags |= IS_SKIPPED
            self.end_optimizer(optimizer)

    def end_backward(self) -> None:
        """Optimizers have stepped inside the backward that was just left: they belong to its step."""
        self.has_stepped_inside = False
        if self.phase != BACKWARD and self._owner != _OFF:
            self._end_part(IN_BACKWARD)

    def begin_block(self) -> None:
        """The script enters a `trace_step()` block: from now on only blocks are steps. Inner blocks count nothing."""
        if self._depth == 0 and (not self._is_explicit or get_ident() != self._owner):
            self._begin_first_block()
        self._depth += 1

    def end_block(self, *, is_completed: bool) -> None:
        """It leaves it; a block left by an exception is no step, nor is one that was entered before the clock began."""
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0 and is_completed and get_ident() == self._owner:
            self.leave(self.phase)
            self._recorder.record_step(self._take_part())
            self._count(1)

    def finish(self, *, has_error: bool) -> None:
        """Training is over. Without an error, the optimizers that have stepped since the last step made one more."""
        if not has_error:
            self._count(self._writer.complete())
        self.notes.explain(self.step - 1)

    # --- batches, and what marks a step ---------------------------------------------------------------------------

    def enter_input(self, source: int) -> int:
        """A batch is asked for; `source` identifies the loader. NOT_OURS where another thread trains."""
        if (get_ident() != self._owner and not self._may_ask()) or not (self._is_proven or self.phase == RESIDUAL):
            return NOT_OURS  # within a phase it is a prefetcher's: it would go back there when that is long over
        before = self.enter(INPUT_WAIT)
        self._wait_mark = self.spent[INPUT_WAIT]
        self._forward_mark = self.spent[FORWARD]
        self._source = source
        if self._writer.is_waiting:
            self._count(self._writer.see_batch(source))
        return before

    def is_moving_batch(self) -> bool:
        """Training has begun and no model was called since the last batch or step: what moves now is the batch."""
        return self.start != 0 and self._forward_mark == self.spent[FORWARD] and get_ident() == self._owner

    def see_no_grad(self, *, is_eval: bool) -> None:
        """A root module is called without gradients: validation, unless a training module is so called every step."""
        if get_ident() != self._owner and not self._may_ask():
            return
        if is_eval or self._last_no_grad < self.step - 1 > 1:
            self.flags |= IS_UNUSUAL
            self.spent[INPUT_WAIT] = min(self.spent[INPUT_WAIT], self._wait_mark)
        self._last_no_grad = self.step

    def see_backward(self) -> None:
        """A backward in a step without a forward, or in the first."""
        if self.step == 1:
            self.notes.see_backward()

    def see_gradient_wait(self, ready_ns: int) -> None:
        """Of the backward that was just left, the time since `ready_ns` was waiting for other ranks."""
        if self._owner != _OFF:
            self.spent[WAITED] += max(1, self.since - ready_ns)

    def see_checkpoint(self) -> None:
        """Something is saved."""
        if get_ident() == self._owner or self._may_ask():
            self.flags |= IS_UNUSUAL

    def see_disturbance(self) -> None:
        """Something is compiled, in whatever thread, or we were busy: this step says nothing about others."""
        self.flags |= IS_WARMUP

    def switch_off(self) -> None:
        """In a forked child, or after too many errors of ours: nothing is written from now on, nothing can fail."""
        self._owner, self._is_proven = _OFF, False
        self.alone = self.stepping = NO_OPTIMIZER
        self._stop()

    def forget_optimizer(self, optimizer: int) -> None:
        """See `StepOrder.forget`. The next object may be at the same place."""
        if optimizer == self.alone:
            self.alone = NO_OPTIMIZER
        self._writer.forget(optimizer)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _may_ask(self) -> bool:
        """Whether an event of a thread that is not known to train counts: before any is known. The next step tells."""
        if self._owner == _NOBODY:
            self._owner = get_ident()
        elif self._owner != _OFF:
            self._is_proven, self.alone = False, NO_OPTIMIZER
        return self._owner == get_ident()

    def _may_begin(self) -> bool:
        """Whether a step counts that does not begin between two phases of the thread that trains."""
        if self._owner == _OFF:
            return False
        if self.phase == BACKWARD:
            self.has_stepped_inside = True
            return False
        if self.stepping:  # it was left by an exception
            self.flags |= IS_UNUSUAL
            self.phase = RESIDUAL
        self._take_over()
        return True

    def _take_over(self) -> None:
        """The calling thread trains. What another one waited for until now was not for training."""
        if self._owner != get_ident():
            if self._owner != _NOBODY:
                self.spent[INPUT_WAIT] = 0
                self.phase = RESIDUAL  # the other may be in the middle of waiting
            self._owner = get_ident()
        self._is_proven = True

    def _begin_first_block(self) -> None:
        """The first of all, or of a thread."""
        if self._owner == _OFF:
            return
        self._take_over()
        self._is_explicit = True
        self.alone = NO_OPTIMIZER
        self._count(self._writer.complete())
        self.notes.see_block()
        self.leave(self.phase)

    def _end_part(self, optimizer: int) -> None:
        """The long way of `end_optimizer`, for everything but one optimizer that steps alone."""
        if self._is_explicit:
            return
        if self._was_alone:
            self._writer.resume(self._last_source)
        self._last_source, self._source = self._source, NO_SOURCE
        self._count(self._writer.add(optimizer, self._last_source, self._take_part()))
        only = self._writer.only
        self._was_alone = only is not None
        self.alone = only if only is not None and self._is_proven and not self._recorder.is_limited else NO_OPTIMIZER

    def _count(self, num_steps: int) -> None:
        """So many steps have become complete."""
        self.step += num_steps
        if self.step >= self._next_occasion:
            self._mark_occasion()

    def _mark_occasion(self) -> None:
        """Steps 1, 2, 4, 8 ... are complete: an occasion to say what is missing. Where there are `max_steps`, every one
        is: beyond them the records do not tell of progress any more."""
        step = self.step
        self.notes.explain(step - 1)
        self._next_occasion = 2 * step - 1
        if self._recorder.is_limited:
            self._next_occasion = step + 1
            self._recorder.set_progress(self.phase, step, self.since)
