"""One pass over all measurements of a run, rank by rank; what is kept does not grow with the run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from traceml_daemon.core.events import Incarnation
from traceml_daemon.diagnosis.profile import RunProfile
from traceml_daemon.report.cells import CellAxis, StepCells
from traceml_daemon.report.facts import AttemptFacts, RunFacts
from traceml_daemon.report.measured_form import (
    GpuSystem,
    NodeSeries,
    NodeSystem,
    RankMemory,
    RankProcess,
    RankSeries,
    Series,
)
from traceml_daemon.report.measurements import Measurements
from traceml_daemon.report.profiles import RankParts, rank_parts, run_profile
from traceml_daemon.report.samples import RankSamples, gpus
from traceml_daemon.report.series import SpanAxis, node_series, phase_lines, rank_series, series
from traceml_daemon.report.spikes import SpikeFinder
from traceml_daemon.report.statistics import AttemptSteps, PhaseStatistics

Attempts = Mapping[int, tuple[AttemptFacts, ...]]
"""Rank to its attempts, the last of which speaks for it."""


class Reading:
    """What the sections of the summary are made from."""

    def __init__(self, measurements: Measurements, attempts: Attempts, facts: RunFacts) -> None:
        self.overall = PhaseStatistics()
        self.steps: dict[Incarnation, AttemptSteps] = {}
        self.last_steps: dict[int, AttemptSteps] = {}
        self.memory: list[RankMemory] = []
        self.process: list[RankProcess] = []
        self.system: dict[int, NodeSystem] = {}
        self._gpus: dict[int, list[GpuSystem]] = {}
        self._parts: list[RankParts] = []
        self._rank_series: list[RankSeries] = []
        self._node_series: dict[int, NodeSeries] = {}
        last = [ordered[-1].incarnation for ordered in attempts.values()]
        self._axis = CellAxis.covering(max(map(measurements.num_steps, last), default=0), len(last))
        self._spans = _spans(facts, len(last))
        for rank, ordered in attempts.items():
            self._read(measurements, rank, ordered)
        for index, found in self._gpus.items():
            if found and index in self.system:
                self.system[index] = msgspec.structs.replace(self.system[index], gpus=tuple(found))

    def series(self) -> Series:
        lines = phase_lines((part.cells for part in self._parts), self._axis)
        return series(
            self._axis,
            self._spans,
            {name: lines[name] if phase is not None else () for name, phase in self.overall.phases().items()},
            (step for steps in self.last_steps.values() for step in steps.unusual_steps),
            self._rank_series,
            (self._node_series[index] for index in sorted(self._node_series)),
        )

    def profile(self, *, has_accelerator: bool) -> RunProfile:
        measured = (name for name, phase in self.overall.phases().items() if phase is not None)
        return run_profile(self._parts, self.system, measured, has_accelerator=has_accelerator)

    def _read(self, measurements: Measurements, rank: int, ordered: tuple[AttemptFacts, ...]) -> None:
        *earlier, last = ordered
        for attempt in earlier:
            self.steps[attempt.incarnation] = AttemptSteps(measurements.steps(attempt.incarnation))
        cells, spikes = StepCells(self._axis), SpikeFinder()
        steps = AttemptSteps(measurements.steps(last.incarnation), self.overall, cells, spikes)
        self.steps[last.incarnation] = self.last_steps[rank] = steps
        samples = RankSamples(measurements.samples(last.incarnation))
        self._parts.append(rank_parts(rank, last.incarnation.node_index, cells, spikes, steps, samples))
        self._rank_series.append(rank_series(cells, samples, last, self._spans))
        self._read_samples(samples, rank, last)

    def _read_samples(self, samples: RankSamples, rank: int, attempt: AttemptFacts) -> None:
        self.memory.append(samples.memory(rank))
        self.process.append(samples.process(rank))
        node_index = attempt.incarnation.node_index
        self._gpus.setdefault(node_index, []).extend(gpus(samples, rank))
        system, load = samples.system(node_index), node_series(samples, attempt, self._spans)
        if system is not None and load is not None:
            self.system[node_index], self._node_series[node_index] = system, load


def _spans(facts: RunFacts, num_ranks: int) -> SpanAxis:
    start_ns = facts.training_started_ns if facts.training_started_ns is not None else facts.started_ns
    end_ns = facts.training_ended_ns if facts.training_ended_ns is not None else facts.generated_ns
    return SpanAxis.covering(start_ns, end_ns, num_ranks)
