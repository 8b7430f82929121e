"""Where the time of a step went: percentiles, mean and share of every phase, overall and by rank.

A rank's records are read once, in pieces; what is kept of them does not grow with the run. The warm-up step is left out
wherever there are others, skipped steps are counted apart, and what no phase claims of a step is the residual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from traceml_client.protocol.columns import IS_SKIPPED, IS_UNUSUAL, IS_WARMUP, PHASES
from traceml_daemon.report.cells import StepCells
from traceml_daemon.report.distribution import Distribution
from traceml_daemon.report.form import PHASE_NAMES, Phases, PhaseTimes, RankStepTime, StepTimeSection, Window
from traceml_daemon.report.measurements import Integers, Mask, Records
from traceml_daemon.report.spikes import SpikeFinder

CLOCK: Final = "host"
"""Durations are of the host's monotonic clock: of what the training thread waited for, kernels that still run included
only where it did."""
_NS_PER_MS: Final = 1e6
MAX_UNUSUAL: Final = 200
"""Steps that are listed one by one."""


class PhaseStatistics:
    """Distributions of all phases over any number of steps."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._phases = tuple(Distribution() for _ in PHASE_NAMES)

    def add(self, columns: tuple[Integers, ...], num_steps: int) -> None:
        """`columns` as `phase_columns` returns them."""
        self.num_steps += num_steps
        for phase, column in zip(self._phases, columns, strict=True):
            phase.add(column)

    def phases(self) -> Phases:
        step = self._phases[-1]
        return {
            name: _times(phase, step.total, self.num_steps) if phase.count else None
            for name, phase in zip(PHASE_NAMES, self._phases, strict=True)
        }


def phase_columns(values: Integers) -> tuple[Integers, ...]:
    """Nanoseconds by PHASE_NAMES, without those of steps in which a phase was not measured.

    `values` as in step records: shape (6, n).
    """
    num_phases = len(PHASES)
    step = values[num_phases].copy()  # a view would keep all six columns alive
    residual = step - np.maximum(values[:num_phases], 0).sum(axis=0)
    return *(column[column >= 0] for column in values[:num_phases]), np.maximum(residual, 0), step


class AttemptSteps:
    """One attempt's steps: how many of each kind, and the figures of those that count."""

    def __init__(
        self,
        pieces: Iterable[Records],
        overall: PhaseStatistics | None = None,
        cells: StepCells | None = None,
        spikes: SpikeFinder | None = None,
    ) -> None:
        """Read all records; those that count go into `overall` and `spikes` too, the steady ones into `cells`."""
        self.num_completed = 0
        """Without the skipped ones."""
        self.num_skipped = self.num_warmup = self.num_unusual = 0
        self.last_step = 0
        self.first_in_window: int | None = None
        self.last_in_window: int | None = None
        self.first_end_ns = self.last_end_ns = 0
        """Of the window, by the rank's monotonic clock."""
        self.unusual_steps: list[int] = []
        """The first of them."""
        self._cells, self._spikes = cells, spikes
        statistics = PhaseStatistics()
        self._read(pieces, (statistics,) if overall is None else (statistics, overall))
        self.num_in_window = statistics.num_steps
        self.phases = statistics.phases()

    @property
    def backward_wait_ms(self) -> float | None:
        """The mean of steady steps; null where it was not measured, or no cells were kept."""
        cells = self._cells
        if cells is None or not cells.is_wait_measured:
            return None
        return _ms(float(cells.waited_ns.sum()) / max(1, int(cells.counts.sum())))

    def _read(self, pieces: Iterable[Records], all_statistics: tuple[PhaseStatistics, ...]) -> None:
        warmup: list[Records] = []
        for records in pieces:
            is_skipped = (records.tags & IS_SKIPPED) > 0
            is_warmup = ((records.tags & IS_WARMUP) > 0) & ~is_skipped
            self.num_skipped += int(is_skipped.sum())
            self.num_completed += len(records.tags) - int(is_skipped.sum())
            self.last_step = int(records.sequences[-1]) + 1 if len(records.sequences) else self.last_step
            if is_warmup.any():
                warmup.append(_pick(records, is_warmup))
            self._count(_pick(records, ~is_skipped & ~is_warmup), all_statistics)
        self.num_warmup = sum(len(records.tags) for records in warmup)
        if self.first_in_window is None and self.num_warmup:
            self.num_warmup = 0
            for records in warmup:
                self._count(records, all_statistics)

    def _count(self, records: Records, all_statistics: tuple[PhaseStatistics, ...]) -> None:
        if len(records.tags) == 0:
            return
        is_unusual = (records.tags & IS_UNUSUAL) > 0
        self.num_unusual += int(is_unusual.sum())
        self.unusual_steps += (records.sequences[is_unusual][: MAX_UNUSUAL - len(self.unusual_steps)] + 1).tolist()
        if self._cells is not None:
            self._cells.add(_pick(records, ~is_unusual))
        if self._spikes is not None:
            self._spikes.add(records)
        if self.first_in_window is None:
            self.first_in_window = int(records.sequences[0]) + 1
            self.first_end_ns = int(records.end_ns[0])
        self.last_end_ns = int(records.end_ns[-1])
        self.last_in_window = int(records.sequences[-1]) + 1
        columns = phase_columns(records.values)
        for statistics in all_statistics:
            statistics.add(columns, len(records.tags))


def step_time_section(
    overall: PhaseStatistics, by_rank: Mapping[int, AttemptSteps], notes: Iterable[str]
) -> StepTimeSection:
    """`by_rank`: the last attempt of each rank; `notes`: what ranks said of phases that they could not measure."""
    phases = overall.phases()
    step = phases["step"]
    return StepTimeSection(
        clock=CLOCK,
        window=_window(by_rank.values()),
        phases=phases,
        by_rank=tuple(
            RankStepTime(rank, steps.num_in_window, steps.phases, steps.backward_wait_ms)
            for rank, steps in by_rank.items()
        ),
        throughput_steps_per_s=1e3 / step.mean_ms if step is not None and step.mean_ms > 0 else None,
        reasons=_reasons(phases, tuple(notes)),
    )


def _window(ranks: Iterable[AttemptSteps]) -> Window:
    ranks = tuple(ranks)
    return Window(
        first_step=min((r.first_in_window for r in ranks if r.first_in_window is not None), default=None),
        last_step=max((r.last_in_window for r in ranks if r.last_in_window is not None), default=None),
        steps=max((r.num_in_window for r in ranks), default=0),
        warmup=sum(r.num_warmup for r in ranks),
        skipped=sum(r.num_skipped for r in ranks),
        unusual=sum(r.num_unusual for r in ranks),
    )


def _reasons(phases: Phases, notes: tuple[str, ...]) -> dict[str, str]:
    """Why phases are null: in the words of a rank where one said something of that phase."""
    if phases["step"] is None:
        about_steps = next((note for note in notes if note.startswith("no step")), "no completed step was recorded")
        return dict.fromkeys(PHASE_NAMES, about_steps)
    return {
        name: next((note for note in notes if note.startswith(name)), "not measured on any step of any rank")
        for name in PHASES
        if phases[name] is None
    }


def _times(phase: Distribution, step_total_ns: int, num_steps: int) -> PhaseTimes:
    p50_ms, p95_ms, p99_ms = map(_ms, phase.percentiles())
    share = round(phase.total / step_total_ns, 6) if step_total_ns else 0.0
    return PhaseTimes(p50_ms, p95_ms, p99_ms, _ms(phase.total / num_steps), share)


def _ms(duration_ns: float) -> float:
    return round(duration_ns / _NS_PER_MS, 6)


def _pick(records: Records, mask: Mask) -> Records:
    if mask.all():
        return records
    return Records(records.sequences[mask], records.end_ns[mask], records.tags[mask], records.values[:, mask])
