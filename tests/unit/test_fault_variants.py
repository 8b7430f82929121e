"""The fault matrix on other ranks and steps: what is changed, and what must stay as its table says."""

from __future__ import annotations

from tests.faults.catalogue import Fault, own_cases
from tests.faults.variants import variant

RAISES = Fault(
    name="raises",
    script="raises.py",
    args=("--rank", "2", "--step", "20", "--delay", "8"),
    nproc=3,
    category="python_exception",
    initiating_rank=2,
    steps_completed=(20, 20, 20),
)


def test_first_run_is_the_tables_own() -> None:
    assert [variant(case.fault, 0) for case in own_cases()] == [case.fault for case in own_cases()]


def test_repetition_fails_on_another_rank_and_step() -> None:
    once = variant(RAISES, 1)
    assert once.args == ("--rank", "0", "--step", "3", "--delay", "8")
    assert (once.initiating_rank, once.steps_completed) == (0, (3, 3, 3))
    assert {variant(RAISES, index).initiating_rank for index in range(5)} == {0, 1, 2}


def test_rank_that_another_argument_depends_on_stays() -> None:
    two = Fault(
        name="two", script="two.py", args=("--rank", "2", "--second", "1"), category="abort", initiating_rank=2, nproc=3
    )
    assert variant(two, 1) == two


def test_steps_that_the_argument_does_not_decide_stay() -> None:
    uneven = Fault(name="uneven", script="u.py", args=("--step", "20"), category="abort", steps_completed=(20, 24))
    assert variant(uneven, 1) == uneven


def test_rank_that_listens_where_another_one_will_cannot_be_that_one() -> None:
    taken = Fault(
        name="taken", script="t.py", args=("--rank", "1", "--port", "1"), category="port_in_use", initiating_rank=1
    )
    assert variant(taken, 1) == taken
