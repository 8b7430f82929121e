"""The step clock with times made by hand: what belongs to which phase, where steps begin and end."""

from __future__ import annotations

from tests.client.clocked_rank import A, B, Rank
from traceml_client.phases import BACKWARD, FORWARD
from traceml_client.protocol.columns import IS_SKIPPED, IS_UNUSUAL, IS_WARMUP


def test_a_plain_loop() -> None:
    rank = Rank()
    rank.spend(500)
    for _ in range(3):
        rank.step()
    assert [one.duration_ns for one in rank.steps] == [100, 100, 100]
    assert rank.steps[1].phases == {"input_wait": 10, "h2d": 0, "forward": 20, "backward": 30, "optimizer": 15}
    assert [one.flags for one in rank.steps] == [IS_WARMUP, 0, 0]
    assert rank.steps[-1].end_ns == 1_000_000 + 500 + 300


def test_a_step_begins_where_the_one_before_ended() -> None:
    rank = Rank()
    rank.step()
    rank.spend(1_000)
    rank.step()
    assert rank.steps[1].duration_ns == 1_100


def test_the_record_is_there_when_the_optimizer_returns() -> None:
    rank = Rank()
    rank.batch(10)
    rank.clock.begin_optimizer(A)
    assert rank.steps == []
    rank.clock.end_optimizer(A)
    assert len(rank.steps) == 1


def test_what_was_not_seen_is_null_and_no_transfer_is_zero() -> None:
    rank = Rank()
    rank.optimizer(10)
    assert rank.steps[0].phases == {
        "input_wait": None,
        "h2d": 0,
        "forward": None,
        "backward": None,
        "optimizer": 10,
    }


def test_progress_names_step_and_phase() -> None:
    rank = Rank()
    assert rank.progress == (0, None, 0)
    before = rank.clock.enter(FORWARD)
    assert rank.progress == (1, "forward", 1_000_000)
    rank.spend(7)
    rank.clock.leave(before)
    assert rank.progress[:2] == (1, "residual")
    rank.optimizer(3)
    assert rank.progress == (2, "residual", 1_000_010)


def test_an_exception_leaves_its_phase_in_the_progress() -> None:
    rank = Rank()
    before = rank.clock.enter(BACKWARD)
    rank.spend(10)
    rank.clock.leave_raising(before)
    assert rank.progress[:2] == (1, "backward")
    rank.step()
    assert rank.steps[0].phases["backward"] == 40


def test_closures_inside_an_optimizer_are_not_counted_twice() -> None:
    rank = Rank()
    rank.clock.begin_optimizer(A)
    for _ in range(3):
        rank.spend(5)
        rank.phase(FORWARD, 20)
        rank.phase(BACKWARD, 30)
    rank.clock.end_optimizer(A)
    (step,) = rank.steps
    assert (step.phases["forward"], step.phases["backward"], step.phases["optimizer"]) == (60, 90, 15)
    assert step.measured_ns == step.duration_ns == 165


def test_gradients_inside_a_forward_are_backward_and_not_forward() -> None:
    rank = Rank()
    before = rank.clock.enter(FORWARD)
    rank.spend(10)
    rank.phase(BACKWARD, 5)
    rank.clock.leave(before)
    rank.optimizer(1)
    assert (rank.steps[0].phases["forward"], rank.steps[0].phases["backward"]) == (10, 5)


def test_optimizers_inside_a_backward_end_its_step() -> None:
    rank = Rank()
    for _ in range(2):
        before = rank.clock.enter(BACKWARD)
        for optimizer in (A, B, A):
            rank.optimizer(5, optimizer)
        assert rank.clock.has_stepped_inside
        rank.clock.leave(before)
        rank.clock.end_backward()
    assert [(one.duration_ns, one.phases["backward"], one.phases["optimizer"]) for one in rank.steps] == [
        (15, 15, None),
        (15, 15, None),
    ]


def test_a_step_that_ends_inside_a_forward_divides_it() -> None:
    """A root module whose forward holds the whole training step."""
    rank = Rank()
    before = rank.clock.enter(FORWARD)
    rank.spend(10)
    rank.optimizer(5)
    rank.spend(20)
    rank.clock.leave(before)
    rank.optimizer(5)
    assert [(one.phases["forward"], one.duration_ns) for one in rank.steps] == [(10, 15), (20, 25)]


def test_an_optimizer_left_by_an_exception_counts_nothing() -> None:
    rank = Rank()
    rank.step()
    rank.clock.begin_optimizer(A)
    rank.spend(1_000)
    rank.step()
    rank.step()
    assert len(rank.steps) == 3
    assert rank.steps[1].flags == IS_UNUSUAL
    assert rank.steps[1].duration_ns == 1_100
    assert rank.steps[2].phases == rank.steps[0].phases


def test_the_end_of_an_optimizer_that_never_began_is_ignored() -> None:
    rank = Rank()
    rank.clock.end_optimizer(A)
    rank.clock.begin_optimizer(A)
    rank.clock.end_optimizer(B)
    assert rank.steps == []


def test_a_skipped_step_counts_and_is_marked() -> None:
    rank = Rank()
    rank.step()
    rank.clock.begin_optimizer(A)
    rank.clock.end_skipped(A)
    rank.step()
    assert [one.flags for one in rank.steps] == [IS_WARMUP, IS_SKIPPED, 0]


def test_two_optimizers_add_up() -> None:
    rank = Rank()
    for _ in range(4):
        for optimizer in (A, B):
            rank.batch(10, loader=optimizer)
            rank.phase(BACKWARD, 30)
            rank.optimizer(15, optimizer)
    assert [one.duration_ns for one in rank.steps] == [110] * 4
    assert rank.steps[3].phases == {"input_wait": 20, "h2d": 0, "forward": None, "backward": 60, "optimizer": 30}
    assert rank.progress[0] == 5


def test_a_declared_block_overrides_the_optimizers() -> None:
    rank = Rank()
    for _ in range(3):
        rank.batch(10)
        rank.clock.begin_block()
        rank.optimizer(15)
        rank.clock.begin_block()
        rank.optimizer(15, B)
        rank.clock.end_block(is_completed=True)
        rank.spend(60)
        rank.clock.end_block(is_completed=True)
    assert [one.duration_ns for one in rank.steps] == [100] * 3
    assert rank.steps[2].phases["optimizer"] == 30
    assert rank.steps[2].phases["input_wait"] == 10


def test_a_block_left_by_an_exception_or_never_entered_is_no_step() -> None:
    rank = Rank()
    rank.clock.end_block(is_completed=True)
    rank.clock.begin_block()
    rank.clock.end_block(is_completed=False)
    rank.clock.end_block(is_completed=True)
    assert rank.steps == []
    rank.clock.begin_block()
    rank.clock.end_block(is_completed=True)
    assert len(rank.steps) == 1


def test_declared_steps_without_optimizer_have_none() -> None:
    rank = Rank()
    rank.clock.begin_block()
    rank.phase(BACKWARD, 10)
    rank.clock.end_block(is_completed=True)
    assert rank.steps[0].phases["optimizer"] is None


def test_the_end_completes_an_iteration_only_without_an_error() -> None:
    for has_error, expected in ((False, 3), (True, 2)):
        rank = Rank()
        for optimizer in (A, B, A, B, A):
            rank.optimizer(5, optimizer)
        rank.clock.finish(has_error=has_error)
        assert len(rank.steps) == expected
