"""Single rules of the diagnosis, each with a made-up run that is just so."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.synthetic import BACKWARD, FORWARD, INPUT, MIB, OPTIMIZER, RESIDUAL, SyntheticRun
from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.finding import Finding
from traceml_daemon.diagnosis.profile import NodeProfile, RunProfile
from traceml_daemon.diagnosis.robust import mann_kendall, theil_sen
from traceml_daemon.diagnosis.verdict import diagnose


def even(num_ranks: int = 2, num_steps: int = 100, *, step_ms: float = 20.0) -> SyntheticRun:
    """Every rank and step alike: a fifth input, two fifths each forward and backward."""
    own = np.zeros((6, num_ranks, num_steps))
    own[INPUT], own[FORWARD], own[BACKWARD] = 0.2 * step_ms, 0.4 * step_ms, 0.4 * step_ms
    own *= np.random.default_rng(5).normal(1, 0.01, own.shape)
    return SyntheticRun(own_ms=own, unusual_steps=np.zeros(num_steps, np.bool_))


def named(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.severity) for finding in findings]


def test_confidence_grows_with_the_number_of_steps() -> None:
    found = [even(num_steps=count).findings()[0].confidence for count in (20, 60, 400)]
    assert found == ["low", "medium", "high"]


@pytest.mark.parametrize("first", [20, 60])
def test_a_straggler_is_named_with_its_first_step(first: int) -> None:
    """However much of the run came before, and whatever the first steps were like."""
    run = even(4, 90)
    run.own_ms[FORWARD, 2, first:] += 50.0
    run.own_ms[FORWARD, 2, 3] += 50.0
    finding = run.findings()[0]
    assert (finding.kind, finding.ranks, finding.phase) == ("COMPUTE_STRAGGLER", (2,), "forward")
    assert f"since step {first + 1}" in finding.summary


@pytest.mark.parametrize(("num_steps", "severity"), [(200, "info"), (3000, "warning")])
def test_a_rank_that_is_slower_in_everything_shares_its_core_unless_it_stays_so(num_steps: int, severity: str) -> None:
    run = even(2, num_steps, step_ms=8.0)
    run.own_ms[OPTIMIZER], run.own_ms[RESIDUAL] = 0.4, 0.3
    run.own_ms[:, 1, num_steps // 2 :] *= 1.7
    finding = next(f for f in run.findings() if f.kind.endswith("STRAGGLER"))
    assert (finding.kind, finding.ranks, finding.severity) == ("COMPUTE_STRAGGLER", (1,), severity)
    assert any("slower in all phases alike" in line for line in finding.evidence)


def test_a_rank_with_longer_samples_does_not_share_its_core() -> None:
    run = even(2, 200, step_ms=8.0)
    run.own_ms[OPTIMIZER], run.own_ms[RESIDUAL] = 0.4, 0.3
    run.own_ms[[INPUT, FORWARD, BACKWARD], 1, 100:] *= 1.7
    finding = next(f for f in run.findings() if f.kind.endswith("STRAGGLER"))
    assert (finding.kind, finding.severity) == ("COMPUTE_STRAGGLER", "warning")


def test_two_slow_ranks_of_eight_are_named_both_and_half_of_them_never() -> None:
    run = even(8)
    run.own_ms[RESIDUAL, [3, 5]] += 30.0
    assert run.findings()[0].ranks == (3, 5)
    run = even(8)
    run.own_ms[RESIDUAL, 3:] += 30.0
    assert not [f for f in run.findings() if f.kind.endswith("STRAGGLER")]


def test_input_that_is_slow_for_all_is_no_straggler_once_the_quicker_queue_is_full() -> None:
    """The rank with the quicker loader waits in its backward at the end."""
    run = even(2, 200)
    run.own_ms[INPUT] = 80.0
    run.own_ms[INPUT, 1] = np.maximum(0.0, 80.0 - np.arange(200))
    assert named(run.findings())[0] == ("INPUT_BOUND", "critical")
    run.own_ms[INPUT, 1] = 1.0
    assert run.findings()[0].kind == "INPUT_STRAGGLER"


@pytest.mark.parametrize(
    ("load_ms", "kind", "severity"),
    [
        ((15.8, 16.2), "INPUT_BOUND", "critical"),
        ((2.0, 16.2), "INPUT_STRAGGLER", "critical"),
        ((0.0, 0.0), "INPUT_STRAGGLER", "warning"),
    ],
)
def test_workers_tell_whether_a_rank_whose_batches_are_ready_could_go_faster(
    load_ms: tuple[float, float], kind: str, severity: str
) -> None:
    """Rank 0 had two batches ahead from the start; where nobody timed its workers, nothing is critical."""
    run = even(2, 60, step_ms=2.0)
    run.own_ms[INPUT, 0], run.own_ms[INPUT, 1] = 1.2, 15.0
    run.load_ms = load_ms
    assert named(run.findings())[0] == (kind, severity)


def test_where_waiting_was_not_seen_the_one_that_differs_is_the_culprit_but_never_critical() -> None:
    """Ranks that meet in a barrier of the script's own: its time is residual."""
    run = even(4)
    run.own_ms[FORWARD, 1] += 60.0
    run.own_ms[RESIDUAL] += run.own_ms[FORWARD, 1] - run.own_ms[FORWARD]
    found = [f for f in run.findings() if f.kind.endswith("STRAGGLER")]
    assert [(f.kind, f.ranks, f.severity, f.confidence) for f in found] == [
        ("COMPUTE_STRAGGLER", (1,), "warning", "low")
    ]


def test_of_two_ranks_that_meet_in_a_barrier_the_earlier_phase_tells() -> None:
    run = even(2)
    run.own_ms[FORWARD, 0] += 60.0
    run.own_ms[RESIDUAL, 1] += 60.0
    found = [f for f in run.findings() if f.kind.endswith("STRAGGLER")]
    assert [(f.kind, f.ranks, f.severity) for f in found] == [("COMPUTE_STRAGGLER", (0,), "warning")]


@pytest.mark.parametrize(("shares", "severity"), [((0.1, 0.6), "info"), ((0.5, 0.5), "critical")])
def test_a_rank_without_a_core_is_no_culprit(shares: tuple[float, float], severity: str) -> None:
    """Unless the others had none either."""
    run = even()
    run.own_ms[FORWARD, 1] *= 4
    run.cpu_wait_share = shares
    findings = run.findings()
    assert [f.severity for f in findings if f.kind.endswith("STRAGGLER")] == [severity]
    assert any(f.kind == "HOST_PRESSURE" for f in findings)


def test_a_trend_on_a_host_without_a_free_core_is_no_alarm() -> None:
    run = even(2, 200)
    run.own_ms[FORWARD] += np.linspace(0, 100, 200)
    assert ("SLOWDOWN", "critical") in named(run.findings())
    run.cpu_wait_share = (0.6, 0.6)
    assert [f.severity for f in run.findings() if f.kind == "SLOWDOWN"] == ["info"]


def test_a_jump_is_no_slowdown_and_a_slow_start_is_none() -> None:
    run = even(2, 200)
    run.own_ms[FORWARD, :, 100:] *= 3
    assert not [f for f in run.findings() if f.kind == "SLOWDOWN"]
    run = even(2, 200)
    run.own_ms[FORWARD] *= np.linspace(3, 1, 200)
    assert not [f for f in run.findings() if f.kind == "SLOWDOWN"]


def test_checkpoints_are_no_stalls_and_no_part_of_a_steady_step() -> None:
    run = even(2, 100)
    run.unusual_steps[9::10] = True
    run.own_ms[RESIDUAL][:, run.unusual_steps] += 300.0
    findings = run.findings()
    assert named(findings)[0] == ("CHECKPOINT_HEAVY", "warning")
    assert not [f for f in findings if f.kind in ("PERIODIC_STALLS", "RESIDUAL_HEAVY")]


def test_irregular_long_steps_are_no_finding() -> None:
    run = even(2, 200)
    run.own_ms[RESIDUAL][:, [3, 17, 20, 61, 64, 130, 131, 190]] += 300.0
    assert [f.kind for f in run.findings() if f.severity != "info"] == []


def rising(num_samples: int, growth_mib: float, shape: float = 1.0) -> SyntheticRun:
    run = even(2, 400)
    run.memory = np.full((2, num_samples), 400 * MIB)
    run.memory[1] += growth_mib * MIB * np.linspace(0, 1, num_samples) ** shape
    return run


@pytest.mark.parametrize(("num_samples", "growth_mib", "severity"), [(10, 80, "warning"), (40, 4000, "critical")])
def test_memory_that_creeps_early_and_confirmed(num_samples: int, growth_mib: float, severity: str) -> None:
    first = rising(num_samples, growth_mib).findings()[0]
    assert (first.kind, first.severity, first.ranks) == ("MEMORY_CREEP", severity, (1,))
    assert ("confirmed" in first.summary) == (severity == "critical")
    assert "the node's memory is used up in" in first.summary


@pytest.mark.parametrize(("growth_mib", "shape"), [(20, 1.0), (300, 0.1)])
def test_memory_that_levels_off_or_hardly_moves_does_not_creep(growth_mib: float, shape: float) -> None:
    assert not [f for f in rising(40, growth_mib, shape).findings() if f.kind == "MEMORY_CREEP"]


def on_node(**facts: object) -> list[tuple[str, str]]:
    node = NodeProfile(node_rank=0, **facts)  # type: ignore[arg-type]
    return named(diagnose(RunProfile(steps_per_cell=1, ranks=(), nodes=(node,), has_accelerator=True)))


def test_what_a_node_runs_short_of() -> None:
    assert ("MEMORY_PRESSURE", "warning") in on_node(max_cgroup_memory_share=0.95)
    assert ("MEMORY_PRESSURE", "info") in on_node(max_memory_share=0.95, ours_memory_share=0.1)
    assert ("HOST_PRESSURE", "warning") in on_node(throttled_share=0.4)
    assert ("HOST_PRESSURE", "warning") in on_node(max_shm_share=0.97)
    assert ("HOST_PRESSURE", "warning") in on_node(gpu_troubles=("device 0 of rank 0 reported Xid 79",))
    assert on_node(cpu_share=0.5, max_memory_share=0.5, max_shm_share=0.1) == [("INSUFFICIENT_DATA", "info")]


@settings(deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=3, max_size=40), st.integers(-5, 5))
def test_a_line_has_its_own_slope_and_mirrored_values_the_opposite_trend(values: list[int], slope: int) -> None:
    x = np.arange(len(values), dtype=np.float64)
    assert theil_sen(x, slope * x) == slope
    y = np.array(values, dtype=np.float64)
    assert mann_kendall(y) == pytest.approx(-mann_kendall(-y))
    assert theil_sen(x, y) == pytest.approx(-theil_sen(x, -y))


def test_a_stretch_without_steady_steps_hides_neither_a_slow_rank_nor_a_trend() -> None:
    run = even(3, 200)
    run.own_ms[FORWARD, 1] += 50.0
    run.unusual_steps[60:90] = True
    assert (run.findings()[0].kind, run.findings()[0].ranks) == ("COMPUTE_STRAGGLER", (1,))
    run = even(3, 200)
    run.own_ms[FORWARD] += np.linspace(0, 80, 200)
    run.unusual_steps[180:] = True
    run.unusual_steps[:30] = True
    assert run.findings()[0].kind == "SLOWDOWN"


def test_every_threshold_has_a_reason_and_a_use() -> None:
    folder = Path(policy.__file__).parent
    elsewhere = "".join(path.read_text() for path in folder.parent.rglob("*.py") if path.name != "policy.py")
    body = ast.parse(Path(policy.__file__).read_text()).body
    for statement, following in itertools.pairwise([*body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(following, ast.Expr), statement.target.id
            assert f"policy.{statement.target.id}" in elsewhere, statement.target.id
