"""The form of `traceml compare --json`, for two runs and for a folder of many.

Durations are milliseconds, changes are percent of A's figure: positive where B takes longer. Null: not measured in both
runs, or no single steps to tell noise from change by.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from traceml_client.protocol.manifest import TrainingStatus
from traceml_daemon.report.form import Finding

COMPARE_SCHEMA_VERSION: Final = 1

Verdict = Literal["better", "worse", "same", "inconclusive"]
Basis = Literal["median", "mean", "quiet"]
Interval = tuple[float, float]
"""(low, high), which holds the true change with 95 % confidence."""


class TailChange(msgspec.Struct, frozen=True):
    """Of the 95th percentile."""

    a_p95_ms: float
    b_p95_ms: float
    change_pct: float | None
    interval_pct: Interval | None


class MeanChange(msgspec.Struct, frozen=True):
    """Of the mean: unlike the median it feels rare slow steps, and the phases' means add up to the step's."""

    a_mean_ms: float
    b_mean_ms: float
    change_pct: float | None
    interval_pct: Interval | None


class QuietChange(msgspec.Struct, frozen=True):
    """Of the 5th percentile: what a step takes while nobody disturbs the machine."""

    a_p5_ms: float
    b_p5_ms: float
    change_pct: float | None
    interval_pct: Interval | None


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """One phase, or the whole step (`phase: step`)."""

    phase: str
    verdict: Verdict
    judged_by: Basis = "median"
    """`quiet`: the fastest twentieth of the steps, where only the machine made the others slower."""
    a_p50_ms: float | None
    b_p50_ms: float | None
    change_pct: float | None = None
    interval_pct: Interval | None = None
    tail: TailChange | None = None
    mean: MeanChange | None = None
    quiet: QuietChange | None = None


class ComparedRun(msgspec.Struct, frozen=True):
    """What was compared. `steps`: of the rank that has most, without warm-up and skipped ones."""

    run_name: str
    run_id: str
    status: TrainingStatus
    ranks: int
    steps: int
    clock: str


class ComparedFindings(msgspec.Struct, frozen=True):
    a: tuple[Finding, ...]
    b: tuple[Finding, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """B against A."""

    schema_version: int = COMPARE_SCHEMA_VERSION
    verdict: Verdict
    why: str
    margin_pct: float
    """A smaller change of the step is `same`."""
    a: ComparedRun
    b: ComparedRun
    step_time: PhaseChange
    phases: tuple[PhaseChange, ...]
    findings: ComparedFindings
    warnings: tuple[str, ...]


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table of many runs."""

    run_name: str
    status: TrainingStatus
    ranks: int
    steps: int
    p50_ms: float | None
    p95_ms: float | None
    throughput_steps_per_s: float | None
    largest_phase: str | None
    largest_share: float | None
    diagnosis: str


class RunTable(msgspec.Struct, frozen=True, kw_only=True):
    """The newest run first."""

    schema_version: int = COMPARE_SCHEMA_VERSION
    runs: tuple[RunRow, ...]
    warnings: tuple[str, ...]
