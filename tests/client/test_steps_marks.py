"""What marks a step, whose events count, and what a rank says of its own measuring; times made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tests.client.clocked_rank import LOADER, A, B, Rank, in_thread
from traceml_client.phases import BACKWARD, FORWARD, H2D, NOT_OURS
from traceml_client.protocol.columns import IS_SKIPPED, IS_UNUSUAL, IS_WARMUP, MAX_WAIT_LEVEL, wait_level


def test_a_validation_pass_marks_its_step_and_its_batches_are_no_input_wait() -> None:
    rank = Rank()
    rank.step()
    rank.step()
    for _ in range(5):
        rank.batch(40, loader=LOADER + 1)
        rank.clock.see_no_grad(is_eval=True)
        rank.spend(7)
    rank.step()
    rank.step()
    assert [one.flags for one in rank.steps] == [IS_WARMUP, 0, IS_UNUSUAL, 0]
    assert rank.steps[2].phases == rank.steps[1].phases
    assert rank.steps[2].duration_ns == 100 + 5 * 47


def test_a_training_module_without_gradients_is_usual_if_the_step_before_had_it_too() -> None:
    rank = Rank()
    for has_pass in (True, True, True, False, True, False, True, True):
        if has_pass:
            rank.clock.enter_input(LOADER)
            rank.clock.see_no_grad(is_eval=False)
        rank.step()
    flags = [one.flags & IS_UNUSUAL for one in rank.steps]
    assert flags == [0, 0, 0, 0, IS_UNUSUAL, 0, IS_UNUSUAL, 0]


def test_a_checkpoint_and_a_compilation_mark_their_step() -> None:
    rank = Rank()
    rank.step()
    rank.clock.see_checkpoint()
    rank.step()
    rank.clock.see_disturbance()
    rank.step()
    assert [one.flags for one in rank.steps] == [IS_WARMUP, IS_UNUSUAL, IS_WARMUP]


def test_a_transfer_that_moved_nothing_is_no_phase() -> None:
    rank = Rank()
    rank.batch(10)
    before = rank.clock.enter(H2D)
    rank.spend(30)
    rank.clock.leave_unclaimed(before)
    rank.optimizer(1)
    assert rank.steps[0].phases["h2d"] == 0
    assert rank.steps[0].duration_ns == 41


def test_transfers_count_between_batch_and_forward() -> None:
    rank = Rank()
    assert not rank.clock.is_moving_batch()
    rank.batch(10)
    assert rank.clock.is_moving_batch()
    rank.phase(FORWARD, 10)
    assert not rank.clock.is_moving_batch()
    rank.batch(10)
    assert rank.clock.is_moving_batch()
    rank.phase(FORWARD, 10)
    rank.optimizer(5)
    assert rank.clock.is_moving_batch()


def test_batches_of_a_thread_that_does_not_train_are_not_waited_for() -> None:
    rank = Rank()
    rank.step()
    in_thread(lambda: rank.batch(1_000))
    rank.step()
    assert rank.steps[1].phases["input_wait"] == 10


def test_a_thread_that_waits_while_another_begins_to_train_does_not_make_it_wait() -> None:
    rank = Rank()
    in_thread(lambda: rank.clock.enter_input(LOADER))
    for _ in range(4):
        rank.spend(1_000)
        rank.optimizer(5)
    assert [one.phases.get("input_wait") for one in rank.steps] == [None] * 4


def test_a_thread_that_fetches_during_the_first_backward_does_not_leave_it_open() -> None:
    rank = Rank()
    before_fetching: list[int] = []
    before = rank.clock.enter(BACKWARD)
    in_thread(lambda: before_fetching.append(rank.clock.enter_input(LOADER)))
    rank.clock.leave(before)
    if before_fetching != [NOT_OURS]:
        rank.clock.leave(*before_fetching)
    for _ in range(3):
        rank.optimizer(5)
    assert len(rank.steps) == 3


def test_training_may_move_to_another_thread() -> None:
    rank = Rank()
    rank.step()
    in_thread(lambda: [rank.step() for _ in range(3)])
    rank.step()
    assert len(rank.steps) == 5
    assert [one.phases["optimizer"] for one in rank.steps] == [15] * 5


def test_an_optimizer_of_another_thread_does_not_disturb_one_that_steps() -> None:
    rank = Rank()
    rank.clock.begin_optimizer(A)
    rank.spend(10)
    in_thread(lambda: rank.optimizer(5, B))
    rank.clock.end_optimizer(A)
    assert len(rank.steps) == 1


def test_switched_off_it_writes_nothing() -> None:
    rank = Rank()
    rank.step()
    rank.clock.switch_off()
    memory = bytes(rank.recorder.words)
    rank.step()
    rank.clock.begin_block()
    rank.clock.end_block(is_completed=True)
    before = rank.clock.enter(BACKWARD)
    rank.optimizer(5)
    rank.clock.leave(before)
    rank.clock.end_backward()
    assert len(rank.steps) == 1
    assert bytes(rank.recorder.words) == memory


def test_progress_goes_on_where_recording_has_stopped() -> None:
    rank = Rank(max_steps=2)
    for number in range(1, 7):
        rank.step()
        assert rank.progress == (number + 1, "residual", rank.now_ns)
    assert len(rank.steps) == 2


def test_three_backwards_without_an_optimizer_ask_for_trace_step_once() -> None:
    rank = Rank()
    for _ in range(6):
        rank.clock.notes.see_backward()
    (note,) = rank.recorder.reader.notes()
    assert "trace_step()" in note
    rank.step()
    assert rank.recorder.reader.notes() == ()


def test_an_existing_optimizer_may_accumulate_for_long() -> None:
    rank = Rank()
    rank.clock.notes.has_optimizer = True
    for _ in range(200):
        rank.clock.notes.see_backward()
    assert rank.recorder.reader.notes() == ()
    for _ in range(100):
        rank.clock.notes.see_backward()
    assert len(rank.recorder.reader.notes()) == 1


def test_the_end_asks_for_trace_step_where_an_optimizer_exists_and_never_stepped() -> None:
    rank = Rank()
    rank.clock.notes.has_optimizer = True
    for _ in range(3):
        rank.clock.notes.see_backward()
    rank.clock.finish(has_error=False)
    (note,) = rank.recorder.reader.notes()
    assert "trace_step()" in note


def test_missing_phases_are_explained_and_taken_back() -> None:
    rank = Rank()
    for _ in range(4):
        rank.phase(FORWARD, 5)
        rank.phase(BACKWARD, 5)
        rank.optimizer(5)
    (note,) = rank.recorder.reader.notes()
    assert note.startswith("input_wait is not measured: ")
    for _ in range(4):
        rank.step()
    assert rank.recorder.reader.notes() == ()


ACTIONS: dict[str, Callable[[Rank, list[int]], object]] = {
    "batch": lambda rank, _open: rank.batch(3),
    "enter forward": lambda rank, open_: open_.append(rank.clock.enter(FORWARD)),
    "enter backward": lambda rank, open_: open_.append(rank.clock.enter(BACKWARD)),
    "leave": lambda rank, open_: rank.clock.leave(open_.pop()) if open_ else None,
    "leave raising": lambda rank, open_: rank.clock.leave_raising(open_.pop()) if open_ else None,
    "leave unclaimed": lambda rank, open_: rank.clock.leave_unclaimed(open_.pop()) if open_ else None,
    "begin A": lambda rank, _open: rank.clock.begin_optimizer(A),
    "end A": lambda rank, _open: rank.clock.end_optimizer(A),
    "begin B": lambda rank, _open: rank.clock.begin_optimizer(B),
    "end B": lambda rank, _open: rank.clock.end_optimizer(B),
    "skip A": lambda rank, _open: rank.clock.end_skipped(A),
    "end backward": lambda rank, _open: rank.clock.end_backward() if rank.clock.has_stepped_inside else None,
    "begin block": lambda rank, _open: rank.clock.begin_block(),
    "end block": lambda rank, _open: rank.clock.end_block(is_completed=True),
    "no grad": lambda rank, _open: rank.clock.see_no_grad(is_eval=True),
    "checkpoint": lambda rank, _open: rank.clock.see_checkpoint(),
    "other thread": lambda rank, _open: in_thread(lambda: rank.step()),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 50)), max_size=80))
def test_no_order_of_events_breaks_a_step(events: list[tuple[str, int]]) -> None:
    """Half-open phases, exceptions, threads: no phase is negative, none overlaps, steps follow one another."""
    rank = Rank()
    open_phases: list[int] = []
    counts = []
    for name, duration_ns in events:
        rank.spend(duration_ns)
        ACTIONS[name](rank, open_phases)
        counts.append(len(rank.steps))
    rank.clock.finish(has_error=False)
    steps = rank.steps
    assert counts == sorted(counts)
    for one in steps:
        assert all(value is None or value >= 0 for value in one.phases.values())
        assert one.measured_ns <= one.duration_ns
    for earlier, later in itertools.pairwise(steps):
        assert later.end_ns - earlier.end_ns == later.duration_ns
    assert rank.progress[0] == (len(steps) + 1 if steps else rank.progress[0])


def test_waiting_inside_a_backward_is_a_share_of_it() -> None:
    rank = Rank()
    rank.step()
    rank.phase(BACKWARD, 30)
    rank.clock.see_gradient_wait(rank.now_ns - 15)
    rank.optimizer(15)
    assert [wait_level(step.flags) for step in rank.steps] == [0, 1 + MAX_WAIT_LEVEL // 2]
    assert rank.steps[1].phases["backward"] == 30


def test_shares_of_waiting_add_up_over_the_parts_of_a_step() -> None:
    rank = Rank()
    for _ in range(3):
        for optimizer, waited in ((A, 90), (B, 0)):
            rank.batch(10, loader=optimizer)
            rank.phase(BACKWARD, 90)
            rank.clock.see_gradient_wait(rank.now_ns - waited)
            rank.optimizer(15, optimizer)
    assert [wait_level(step.flags) for step in rank.steps] == [1 + MAX_WAIT_LEVEL // 2] * 3
    assert rank.steps[2].flags & (IS_WARMUP | IS_SKIPPED | IS_UNUSUAL) == 0
