"""When torchrun's time is over: its own shutdown time-out and a margin, or what a deadline from outside leaves."""

from __future__ import annotations

from signal import SIGINT, SIGTERM

import pytest

from traceml_launch.stop_plan import REPEAT_WINDOW_S, StopPlan


@pytest.mark.parametrize(
    ("shutdown_timeout_s", "grace_s", "grace_of_torchrun_s"),
    [(30.0, None, 35.0), (30.0, 120.0, 35.0), (23.0, 30.0, 28.0), (1.0, 5.0, 4.0), (1.0, 1.0, 0.5), (0.0, None, 5.0)],
)
def test_torchruns_time(shutdown_timeout_s: float, grace_s: float | None, grace_of_torchrun_s: float) -> None:
    plan = StopPlan(shutdown_timeout_s=shutdown_timeout_s, grace_s=grace_s)
    assert plan.kill_at_s() is None
    assert plan.received(SIGTERM, now_s=100.0) == "first"
    assert plan.kill_at_s() == pytest.approx(100.0 + grace_of_torchrun_s)
    assert plan.end_by_s() == (None if grace_s is None else 100.0 + grace_s)


def test_a_second_signal_hurries_and_the_first_names_the_interruption() -> None:
    plan = StopPlan(shutdown_timeout_s=30.0, grace_s=None)
    plan.received(SIGINT, now_s=10.0)
    assert plan.received(SIGTERM, now_s=10.0 + REPEAT_WINDOW_S) == "hurry"
    assert plan.first == SIGINT
    assert plan.kill_at_s() == 10.0


def test_two_arrivals_at_once_are_one_signal() -> None:
    plan = StopPlan(shutdown_timeout_s=30.0, grace_s=None)
    plan.received(SIGTERM, now_s=10.0)
    assert plan.received(SIGTERM, now_s=10.0 + REPEAT_WINDOW_S / 2) == "repeated"
    assert plan.kill_at_s() == 45.0
