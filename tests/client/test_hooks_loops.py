"""Odd but healthy loops, unedited: as many steps as they made, with phases that can be.

Each is a script of `loops/` in a process of its own; what it says of itself is compared with its ring.
"""

from __future__ import annotations

import itertools
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.loop_server import LOOPS, LoopResult, LoopServer
from traceml_client.protocol.columns import IS_SKIPPED, IS_UNUSUAL, IS_WARMUP, MAX_WAIT_LEVEL, wait_level
from traceml_client.step_notes import NO_STEPS

pytestmark = pytest.mark.torch

ALL = {path.stem for path in LOOPS.glob("*.py")} - {"stopwatch", "killed"}
WITH_LOADER = {
    "accumulation",
    "alternating",
    "data_workers",
    "iterable",
    "known_phases",
    "plain",
    "two_loaders",
    "validation",
}
WITHOUT_FORWARD = {"compiled_function", "compiled_whole", "frozen_heap"}
STEP_IN_BACKWARD = {"step_in_backward"}
MAX_SEARCHES = 4
"""Steps in which the client may look in vain for a model."""
SETTLED = 5
"""Steps by which a loop has compiled what it compiles and its models are found."""


@pytest.fixture(scope="module")
def loops() -> Iterator[LoopServer]:
    with LoopServer() as server:
        yield server


@pytest.mark.parametrize("name", sorted(ALL - {"no_optimizer"}))
def test_steps_and_phases(loops: LoopServer, tmp_path: Path, name: str) -> None:
    result = loops.run(name, tmp_path)
    assert result.status == 0, result.output
    assert len(result.steps) == len(result.laps) > SETTLED
    _check_phases(result, name)
    _check_times(result)
    assert result.steps[0].flags & IS_WARMUP
    last_phase = "optimizer" if name == "raising_step" else "residual"
    assert result.reader.progress()[:2] == (len(result.steps) + 1, last_phase)


def _check_phases(result: LoopResult, name: str) -> None:
    for step in result.steps:
        assert 0 < step.measured_ns <= step.duration_ns
    missing = {phase for phase in ("input_wait", "forward", "optimizer") if result.median_ns(phase) is None}
    expected = set() if name in WITH_LOADER else {"input_wait"}
    expected |= {"forward"} if name in WITHOUT_FORWARD else set()
    expected |= {"optimizer"} if name in STEP_IN_BACKWARD else set()
    assert missing == expected
    assert result.median_ns("backward")
    notes = {note.partition(" ")[0] for note in result.reader.notes()}
    assert notes == expected


def _check_times(result: LoopResult) -> None:
    """Against the script's own clock: the same steps, each from its predecessor's end to its own."""
    laps = [later - earlier for earlier, later in itertools.pairwise(result.laps)][1:]
    steps = [step.duration_ns for step in result.steps][2:]
    difference_ns = statistics.median(step - lap for step, lap in zip(steps, laps, strict=True))
    assert abs(difference_ns) <= 0.02 * statistics.median(laps) + 20_000


def test_known_phases_are_measured_right(loops: LoopServer, tmp_path: Path) -> None:
    """The fast steps of it: what else this machine does can only make one slower."""
    result = loops.run("known_phases", tmp_path)
    for phase, milliseconds in {"input_wait": 1, "forward": 3, "backward": 2, "optimizer": 4}.items():
        values = [value for step in result.steps if (value := step.phases[phase]) is not None]
        assert len(values) == len(result.steps)
        assert milliseconds * 1e6 <= statistics.quantiles(values, n=10)[0] <= milliseconds * 1.4e6 + 0.5e6
    rest = [step.duration_ns - step.measured_ns for step in result.steps]
    assert 2e6 <= statistics.quantiles(rest, n=10)[0] <= 3.3e6


@pytest.mark.parametrize("name", ["grad_scaler", "scaling_wrapper"])
def test_skipped_steps_are_told_apart(loops: LoopServer, tmp_path: Path, name: str) -> None:
    result = loops.run(name, tmp_path)
    skipped = [number for number, step in enumerate(result.steps) if step.flags & IS_SKIPPED]
    assert skipped == [number for number in range(30) if number % 3 == 0]


def test_a_forward_that_is_made_again_in_the_backward_is_part_of_it(loops: LoopServer, tmp_path: Path) -> None:
    result = loops.run("recomputed", tmp_path)
    forward, backward = ([step.phases[phase] or 0 for step in result.steps] for phase in ("forward", "backward"))
    assert min(backward) > 2e6
    assert statistics.quantiles(forward, n=10)[0] < 4e6, "one call of 2 ms, not two"


def test_steps_with_a_validation_pass_or_a_checkpoint_are_marked(loops: LoopServer, tmp_path: Path) -> None:
    result = loops.run("validation", tmp_path)
    assert [number for number, step in enumerate(result.steps, 1) if step.flags & IS_UNUSUAL] == [11, 21, 26, 31]
    usual = result.median_ns("input_wait")
    waits = [result.steps[number - 1].phases["input_wait"] for number in (11, 21, 31)]
    assert usual is not None
    # The shortest of the three: a busy machine stretches one or the other, a wait for 100 batches would be in all.
    assert min(wait for wait in waits if wait is not None) < 20 * usual, "100 batches of validation are no input wait"


def test_steps_that_compile_are_marked_and_not_a_graph_more_is_made(loops: LoopServer, tmp_path: Path) -> None:
    for name, compiling in (("compiled", {1, 11, 21}), ("compiled_function", {1, 21}), ("compiled_whole", {1})):
        result = loops.run(name, tmp_path)
        marked = {number for number, step in enumerate(result.steps, 1) if step.flags & IS_WARMUP}
        assert compiling <= marked
        assert len(marked) <= len(compiling) + 2 * MAX_SEARCHES
        assert result.facts["graphs"] == loops.run(name, tmp_path, is_measured=False).facts["graphs"]


def test_a_loop_without_torch_optimizer_has_no_steps_and_says_so(loops: LoopServer, tmp_path: Path) -> None:
    result = loops.run("no_optimizer", tmp_path)
    assert (result.status, result.steps, result.reader.notes()) == (0, [], (NO_STEPS,))


@pytest.mark.parametrize(("when", "num_steps"), [("after-1", 1), ("after-2", 2), ("after-12", 12), ("inside", 12)])
def test_a_killed_rank_has_exactly_its_steps(loops: LoopServer, tmp_path: Path, when: str, num_steps: int) -> None:
    result = loops.run("killed", tmp_path, when)
    assert result.status == signal.SIGKILL
    assert len(result.steps) == num_steps


@pytest.mark.parametrize(("slow_rank", "is_waiting"), [(0, False), (1, True)])
def test_waiting_for_a_slow_peer_is_told_from_a_slow_backward(
    loops: LoopServer, tmp_path: Path, slow_rank: int, is_waiting: bool
) -> None:
    """Both ranks spend the same time in their backward."""
    result = loops.run("two_ranks", tmp_path, str(slow_rank))
    assert result.status == 0, result.output
    assert (result.median_ns("backward") or 0) > 20e6
    levels = [wait_level(step.flags) - 1 for step in result.steps]
    share = statistics.median(levels) / MAX_WAIT_LEVEL
    assert (share > 0.6) == is_waiting
    assert (share < 0.4) == (not is_waiting)
    assert min(levels) >= 0


def test_what_forked_workers_load_is_counted_and_what_spawned_ones_load_is_not(
    loops: LoopServer, tmp_path: Path
) -> None:
    result = loops.run("data_workers", tmp_path)
    num_workers, num_batches, loading_ns = result.facts["fork"]
    assert (num_workers, num_batches) == (2, 10)
    assert loading_ns > 0
    assert result.facts["spawn"] == [1, num_batches, loading_ns]
