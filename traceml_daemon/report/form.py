"""The form of `final_summary.json` and `failure_report.json`: fields that other programs rely on keep their names.

Times are RFC 3339 UTC, durations milliseconds, sizes bytes. Null means not known or not measured; where a person would
ask why, a `reasons` map beside it says so.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from traceml_client.protocol.columns import PHASES
from traceml_client.protocol.manifest import NodeOutcome, RecordCounts, TelemetryFacts, Topology, TrainingStatus
from traceml_daemon.diagnosis.finding import Finding as Finding
from traceml_daemon.report.measured_form import MemorySection, ProcessSection, Series, SystemSection
from traceml_daemon.triage.own_source import Source as Source

SUMMARY_SCHEMA_VERSION: Final = 1
FAILURE_SCHEMA_VERSION: Final = 1

Confidence = Literal["confirmed", "likely", "unknown"]


# --- failure_report.json ----------------------------------------------------------------------------------------------


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """`text` stands literally on that line of that file; `file` is relative to the run folder, lines count from 1.

    `line` is null where tools disagree on the number: behind a carriage return inside a line.
    """

    file: str
    line: int | None
    text: str
    contrast: str = ""
    """Of a line that is no proof: who else did not print it. Left out where there is nothing to say."""

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class Collateral(msgspec.Struct, frozen=True):
    """A rank that ended because of another one."""

    rank: int
    reason: str


class TorchrunView(msgspec.Struct, frozen=True):
    """What torchrun's own "Root Cause" block said, against this report."""

    root_cause_rank: int | None
    agrees: bool | None
    why: str | None


class MissingFact(msgspec.Struct, frozen=True):
    """A fact that would settle the cause, and the command that gets it."""

    fact: str
    command: str


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank failed first, and of what category its failure is."""

    schema_version: int = FAILURE_SCHEMA_VERSION
    category: str
    family: str
    confidence: Confidence
    initiating_rank: int | None
    """The global rank; null where the evidence does not tell."""
    node_rank: int | None = None
    attempt: int | None = None
    """Of that rank, as `ranks` in the summary numbers them."""
    step: int | None = None
    """The step in progress, from 1."""
    phase: str | None = None
    exit_code: int | None
    signal: str | None
    summary: str
    evidence: tuple[Evidence, ...]
    collateral: tuple[Collateral, ...]
    torchrun: TorchrunView
    next_step: str
    command: str | None
    verify_command: str | None
    missing: tuple[MissingFact, ...]
    source: Source | None = None
    """The line of the user's own code at which the initiating rank failed, or all of them did alike."""


# --- final_summary.json -----------------------------------------------------------------------------------------------


class TrainingSection(msgspec.Struct, frozen=True):
    status: TrainingStatus
    exit_code: int | None
    signal: str | None
    started_at: str | None
    ended_at: str | None
    nodes: tuple[NodeOutcome, ...]


class AttemptSection(msgspec.Struct, frozen=True):
    """One incarnation of a rank, numbered by start."""

    attempt: int
    slot_attempt: int
    """Its number in its slot (node, local rank), which names its folder."""
    node_rank: int
    local_rank: int
    host: str
    torch_restart_count: int
    steps: int
    """Completed steps recorded, without the skipped ones."""
    skipped: int
    last_step: int
    state: str
    first_at: str | None
    last_at: str | None
    exit_code: int | None
    why: str | None
    """How it ended, in words; null where nobody saw its end."""
    records: RecordCounts
    notes: tuple[str, ...]


class RankSection(msgspec.Struct, frozen=True):
    rank: int
    attempts: tuple[AttemptSection, ...]


class PhaseTimes(msgspec.Struct, frozen=True):
    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    """Over all steps of the window; a step in which the phase was not measured counts as 0."""
    share: float
    """Of the mean step, 0 to 1."""


PHASE_NAMES: Final = (*PHASES, "residual", "step")
"""What no phase claims of a step is the residual."""
Phases = dict[str, PhaseTimes | None]
"""By PHASE_NAMES; null where not measured."""


class Window(msgspec.Struct, frozen=True):
    """The steps that the figures are of: warm-up and skipped steps are left out."""

    first_step: int | None
    last_step: int | None
    steps: int
    """Of the rank that has most."""
    warmup: int
    skipped: int
    unusual: int
    """Steps of the window that hold a validation pass or a checkpoint; these three are summed over ranks."""


class RankStepTime(msgspec.Struct, frozen=True):
    rank: int
    steps: int
    phases: Phases
    backward_wait_ms: float | None
    """Of the mean backward of steady steps, the part spent waiting for other ranks; null where not measured."""


class StepTimeSection(msgspec.Struct, frozen=True):
    clock: str
    window: Window
    phases: Phases
    by_rank: tuple[RankStepTime, ...]
    throughput_steps_per_s: float | None
    reasons: dict[str, str]
    """Phase to why it is null."""


class FinalSummary(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = SUMMARY_SCHEMA_VERSION
    run_name: str
    run_id: str
    generated_at: str
    provisional: bool
    """Written at the first signal, while training was still ending."""
    topology: Topology
    training: TrainingSection
    telemetry: TelemetryFacts
    warnings: tuple[str, ...]
    ranks: tuple[RankSection, ...]
    step_time: StepTimeSection
    memory: MemorySection
    process: ProcessSection
    system: SystemSection
    series: Series
    primary_diagnosis: Finding
    findings: tuple[Finding, ...]
    failure: FailureReport | None
    failure_history: tuple[FailureReport, ...]
