"""Which leftover gets which signal when: attached ones at once, detached ones after the linger time."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM, Signals

from traceml_launch.system.leftovers import GIVE_UP_S, TERM_TO_KILL_S, Leftovers
from traceml_launch.system.processes import ProcessStat

LAUNCHER_SESSION, RANK_SESSION, OWN_SESSION = 10, 20, 30


def process(pid: int, session: int, start_ticks: int = 1) -> ProcessStat:
    return ProcessStat(pid=pid, state="S", parent_pid=1, session=session, start_ticks=start_ticks, wait_status=0)


def leftovers(linger_until_s: float = 100.0) -> Leftovers:
    return Leftovers(
        attached_sessions={LAUNCHER_SESSION, RANK_SESSION},
        linger_until_s=linger_until_s,
        command_of=lambda pid: f"command {pid}",
    )


def signals(found: list[tuple[ProcessStat, Signals]]) -> dict[int, Signals]:
    return {stat.pid: number for stat, number in found}


def test_a_child_of_a_rank_is_asked_once_and_then_killed() -> None:
    left, child = leftovers(), process(1, RANK_SESSION)
    assert signals(left.found([child], now_s=0.0)) == {1: SIGTERM}
    assert signals(left.found([child], now_s=TERM_TO_KILL_S / 2)) == {}
    assert signals(left.found([child], now_s=TERM_TO_KILL_S)) == {1: SIGKILL}
    assert signals(left.found([child], now_s=2 * TERM_TO_KILL_S)) == {}
    assert left.found([], now_s=3.0) == []
    assert [each.ending for each in left.result()] == ["killed"]


def test_what_was_detached_may_finish_until_the_linger_time_is_over() -> None:
    left, upload = leftovers(linger_until_s=30.0), process(1, OWN_SESSION)
    assert left.found([upload], now_s=0.0) == []
    assert not left.has_any(now_s=0.0, is_attached=True)
    assert left.has_any(now_s=0.0)
    assert left.found([upload], now_s=29.9) == []
    assert signals(left.found([upload], now_s=30.0)) == {1: SIGTERM}
    assert left.found([], now_s=30.1) == []
    assert [(each.is_detached, each.ending) for each in left.result()] == [(True, "terminated")]


def test_an_upload_that_finishes_in_time_is_never_signalled() -> None:
    left = leftovers()
    left.found([process(1, OWN_SESSION)], now_s=0.0)
    left.found([], now_s=5.0)
    assert not left.has_any(now_s=5.0)
    assert [(each.pid, each.command, each.ending) for each in left.result()] == [(1, "command 1", "ended_by_itself")]


def test_hurry_ends_the_lingering() -> None:
    left, upload = leftovers(), process(1, OWN_SESSION)
    left.found([upload], now_s=0.0)
    left.hurry(now_s=1.0)
    assert signals(left.found([upload], now_s=1.0)) == {1: SIGTERM}


def test_a_reused_pid_is_another_process() -> None:
    left = leftovers()
    left.found([process(1, RANK_SESSION, start_ticks=1)], now_s=0.0)
    assert signals(left.found([process(1, RANK_SESSION, start_ticks=2)], now_s=TERM_TO_KILL_S)) == {1: SIGTERM}


def test_a_process_that_outlives_sigkill_is_given_up() -> None:
    left, stuck = leftovers(), process(1, RANK_SESSION)
    left.found([stuck], now_s=0.0)
    left.found([stuck], now_s=TERM_TO_KILL_S)
    assert left.has_any(now_s=TERM_TO_KILL_S + GIVE_UP_S - 0.01, is_attached=True)
    assert not left.has_any(now_s=TERM_TO_KILL_S + GIVE_UP_S, is_attached=True)
    assert not left.has_any(now_s=TERM_TO_KILL_S + GIVE_UP_S)
    assert [each.ending for each in left.result()] == ["still_running"]
