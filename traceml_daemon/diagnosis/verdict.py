"""All findings on a run, strongest first; the first one is the diagnosis."""

from __future__ import annotations

from typing import Final

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.bounds import StepShares, balanced, find_bounds
from traceml_daemon.diagnosis.finding import SEVERITIES, Finding, Kind
from traceml_daemon.diagnosis.hosts import find_host_pressure, find_idle_devices
from traceml_daemon.diagnosis.memory import find_creep, find_imbalance, find_pressure
from traceml_daemon.diagnosis.profile import RunProfile
from traceml_daemon.diagnosis.robust import Blocks
from traceml_daemon.diagnosis.slowdown import find_slowdown
from traceml_daemon.diagnosis.stalls import find_checkpoints, find_stalls
from traceml_daemon.diagnosis.stragglers import find_stragglers

_STRONGEST_FIRST: Final[tuple[Kind, ...]] = (
    "INPUT_STRAGGLER",
    "COMPUTE_STRAGGLER",
    "TRANSFER_STRAGGLER",
    "STRAGGLER",
    "SLOWDOWN",
    "INPUT_BOUND",
    "MEMORY_CREEP",
    "CHECKPOINT_HEAVY",
    "PERIODIC_STALLS",
    "MEMORY_PRESSURE",
    "TRANSFER_BOUND",
    "OPTIMIZER_HEAVY",
    "LOW_GPU_UTILIZATION",
    "HOST_PRESSURE",
    "MEMORY_IMBALANCE",
    "RESIDUAL_HEAVY",
    "COMPUTE_BOUND",
    "BALANCED",
    "INSUFFICIENT_DATA",
)
"""Among findings of one severity: what names a rank or a cause before what describes the whole."""
_ABOUT_MEMORY: Final = {"MEMORY_CREEP", "MEMORY_PRESSURE", "MEMORY_IMBALANCE"}
_ABOUT_RESOURCES: Final = {*_ABOUT_MEMORY, "HOST_PRESSURE", "LOW_GPU_UTILIZATION"}
"""As mere information they stand behind what a step is made of."""
_EXPLAINS_IDLE_DEVICES: Final = {
    "INPUT_BOUND",
    "TRANSFER_BOUND",
    "CHECKPOINT_HEAVY",
    "INPUT_STRAGGLER",
    "COMPUTE_STRAGGLER",
    "TRANSFER_STRAGGLER",
    "STRAGGLER",
}


def diagnose(run: RunProfile) -> tuple[Finding, ...]:
    """At least one finding, strongest first."""
    resources = _resources(run)
    num_steps = max((rank.num_steps for rank in run.ranks), default=0)
    if num_steps < policy.MIN_STEPS:
        return (*_ordered(resources), insufficient(num_steps))
    found = [*_steps(run), *resources]
    kinds = {finding.kind for finding in found if finding.severity != "info"}
    found += find_idle_devices(run, bool(kinds & _EXPLAINS_IDLE_DEVICES))
    return _ordered(found)


def about_memory(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """What may have to do with the end of a failed run."""
    return tuple(f for f in findings if f.kind in _ABOUT_MEMORY and f.severity != "info")


def insufficient(num_steps: int) -> Finding:
    return Finding(
        kind="INSUFFICIENT_DATA",
        severity="info",
        confidence="low",
        summary=f"{num_steps} steady steps are too few for a verdict on performance; {policy.MIN_STEPS} are needed.",
        action="Run more steps.",
    )


def undiagnosed(error: str) -> Finding:
    """Said in place of a verdict where making one failed."""
    return Finding(
        kind="INSUFFICIENT_DATA",
        severity="info",
        confidence="low",
        summary=f"There is no verdict: an error of traceml in the diagnosis ({error}). The measurements are complete.",
        action="Please report this with telemetry.sqlite; compare the shares of the phases in step_time meanwhile.",
    )


def _resources(run: RunProfile) -> list[Finding]:
    creep = list(find_creep(run))
    creeping = {rank for finding in creep for rank in finding.ranks}
    return [*creep, *find_imbalance(run, creeping), *find_pressure(run), *find_host_pressure(run)]


def _steps(run: RunProfile) -> list[Finding]:
    blocks = Blocks(run)
    stragglers = list(find_stragglers(run, blocks))
    culprits = {rank for f in stragglers if f.severity != "info" for rank in f.ranks}
    places = [place for place, rank in enumerate(run.ranks) if rank.rank not in culprits]
    shares = StepShares(blocks, places)
    bounds = [f for f in find_bounds(run, shares) if not culprits or f.severity != "info"]
    is_input_bound = any(f.kind == "INPUT_BOUND" and f.severity != "info" for f in bounds)
    stalls = [f for f in find_stalls(run) if not (is_input_bound and f.phase == "input_wait")]
    found = [*stragglers, *bounds, *find_slowdown(run, blocks), *stalls, *find_checkpoints(run)]
    return found if found else [balanced(run, shares)]


def _ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    def strength(finding: Finding) -> tuple[int, bool, int, float]:
        severity, place = SEVERITIES.index(finding.severity), _STRONGEST_FIRST.index(finding.kind)
        is_aside = finding.severity == "info" and finding.kind in _ABOUT_RESOURCES
        return -severity, is_aside, place, -(finding.lost_share or 0.0)

    return tuple(sorted(findings, key=strength))
