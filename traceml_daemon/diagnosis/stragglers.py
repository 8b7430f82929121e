"""Ranks that hold the others up: who is the culprit, and who only waits for it.

Ranks that exchange gradients have the same step time, so the slow one is found by what it does itself. Where the
waiting inside the backward was measured it is nobody's own time, and the culprit is the rank whose own time is longest.
Where ranks wait elsewhere (a barrier, an all-reduce of the script's own) their own times are equal too; then the one
that differs from the rest in a phase is the culprit, and of two ranks the one that is longer in the earlier phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.finding import Finding, Kind, Severity
from traceml_daemon.diagnosis.profile import (
    BACKWARD,
    FORWARD,
    H2D,
    INPUT_WAIT,
    OPTIMIZER,
    OWN_PHASES,
    RESIDUAL,
    WAITING,
    Floats,
    RunProfile,
)
from traceml_daemon.diagnosis.robust import Blocks, median
from traceml_daemon.diagnosis.wording import confidence, milliseconds, ranks_text, sentence

_GROUPS: Final[dict[Kind, tuple[int, ...]]] = {
    "INPUT_STRAGGLER": (INPUT_WAIT,),
    "TRANSFER_STRAGGLER": (H2D,),
    "COMPUTE_STRAGGLER": (FORWARD, BACKWARD, OPTIMIZER),
    "STRAGGLER": (RESIDUAL,),
}
_EARLIEST_FIRST: Final = (INPUT_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, RESIDUAL)
_ACTIONS: Final[dict[Kind, str]] = {
    "INPUT_STRAGGLER": "Look at that rank's data: its shard, its storage, its workers.",
    "TRANSFER_STRAGGLER": "Look at that rank's host and link: pinned memory, PCIe width, NUMA placement.",
    "COMPUTE_STRAGGLER": "Look at that rank's device and batches: clocks, other jobs on it, longer samples.",
    "STRAGGLER": "Look at what the loop does on that rank alone beside model and optimizer: logging, saving.",
}


@dataclass(frozen=True, slots=True)
class _Candidate:
    kind: Kind
    phase: int
    ranks: tuple[int, ...]
    """Places in the profile."""
    excess_ms: float
    step_ms: float
    first_cell: int
    is_clear: bool
    """The excess shows in the sum of the rank's own time."""

    @property
    def share(self) -> float:
        return self.excess_ms / self.step_ms if self.step_ms > 0 else 0.0


def find_stragglers(run: RunProfile, coarse: Blocks) -> Iterator[Finding]:
    """The strongest one of each kind, over the whole run, its last half or its last quarter."""
    if len(run.ranks) < 2:
        return
    is_wait_measured = all(rank.is_wait_measured for rank in run.ranks if rank.num_steps)
    strongest: dict[Kind, _Candidate] = {}
    fine = Blocks(run, is_fine=True)
    for share in policy.WINDOW_SHARES:
        first = int(fine.num_blocks * (1 - share))
        if share < 1 and fine.steps[first:].sum() < policy.MIN_STEPS:
            continue
        windows = {True: coarse.phases[:, :, int(coarse.num_blocks * (1 - share)) :], False: fine.phases[:, :, first:]}
        for found in _candidates(windows, first, is_wait_measured):
            if found.kind == "INPUT_STRAGGLER" and _is_input_of_all(run, found):
                continue
            if found.kind not in strongest or found.share > 1.2 * strongest[found.kind].share:
                strongest[found.kind] = found
    for candidate in strongest.values():
        candidate = replace(candidate, is_clear=candidate.is_clear and not _is_loading_unknown(run, candidate))
        yield _finding(run, fine, _since_its_begin(candidate, fine))


def _since_its_begin(found: _Candidate, fine: Blocks) -> _Candidate:
    """The cell from which on they are behind more often than not, by the largest margin."""
    rows = fine.phases[:, _GROUPS[found.kind]].sum(axis=1)
    others = [place for place in range(len(rows)) if place not in found.ranks]
    lead = median(rows[list(found.ranks)], axis=0) - median(rows[others], axis=0)
    votes = np.nan_to_num(np.sign(lead - 0.5 * found.excess_ms))
    first = int(np.argmax(np.cumsum(votes[::-1])[::-1]))
    return replace(found, first_cell=first if first > len(votes) // 10 else 0)


def _candidates(windows: dict[bool, Floats], first_cell: int, is_wait_measured: bool) -> Iterator[_Candidate]:
    """`windows`: (ranks, rows, blocks), coarse blocks for input, which comes in bursts, cells for the rest."""
    windows = {is_coarse: _without_waiting(phases, is_wait_measured) for is_coarse, phases in windows.items()}
    whole = median(windows[False], axis=2)
    alive = np.flatnonzero(~np.isnan(whole).any(axis=1) & ~np.isnan(median(windows[True], axis=2)).any(axis=1))
    if len(alive) < 2:
        return
    step_ms = float(np.median(median(windows[True].sum(axis=1), axis=1)[alive]))
    for kind, rows in _GROUPS.items():
        phases = windows[kind == "INPUT_STRAGGLER"][alive]
        phases = phases[:, :, ~np.isnan(phases).any(axis=(0, 1))]  # blocks in which somebody had no steady step
        if not phases.shape[2]:
            continue  # they never trained at the same time
        excess = _consistent_excess(phases[:, rows].sum(axis=1))
        threshold = max(policy.STRAGGLER_INFO * step_ms, policy.STRAGGLER_FLOOR_MS)
        slow = np.flatnonzero(excess >= max(threshold, 0.5 * np.max(excess))).astype(np.int64)
        if not 0 < len(slow) <= policy.MAX_CULPRIT_SHARE * len(alive):
            continue
        own = _consistent_excess(phases[:, :WAITING].sum(axis=1))
        is_clear = bool((own[slow] >= policy.OWN_TOTAL_SHARE * excess[slow]).all())
        by_rank = median(phases, axis=2)
        if is_clear or _differs_most(by_rank, rows, slow):
            phase = max(rows, key=lambda row: float(_excess(by_rank[:, row])[slow].sum()))
            ranks = tuple(alive[slow].tolist())
            yield _Candidate(kind, phase, ranks, float(excess[slow].max()), step_ms, first_cell, is_clear)


def _without_waiting(phases: Floats, is_wait_measured: bool) -> Floats:
    """Where it was not measured, the whole backward may be waiting: nobody's own time."""
    if not is_wait_measured:
        phases = phases.copy()
        phases[:, WAITING] += phases[:, BACKWARD]
        phases[:, BACKWARD] = 0.0
    return phases


def _excess(values: Floats) -> Floats:
    """By rank, over the quickest quarter of the ranks."""
    over: Floats = values - np.quantile(values, 0.25, axis=0, method="lower")
    return over


def _consistent_excess(values: Floats) -> Floats:
    """`values`: (ranks, blocks). The median excess of each rank; 0 where it changes from block to block."""
    in_blocks = _excess(values)
    typical = median(in_blocks, axis=1)
    share = (in_blocks >= 0.5 * typical[:, None]).mean(axis=1)
    return np.where((share >= policy.STRAGGLER_CONSISTENCY) & (typical > 0), typical, 0.0)


def _differs_most(by_rank: Floats, rows: tuple[int, ...], slow: npt.NDArray[np.int64]) -> bool:
    """Nobody's own time is longer: are these the ones that differ, or do they wait for those that do?"""
    num_ranks = len(by_rank)
    if len(slow) < num_ranks - len(slow):
        return True
    others = [rank for rank in range(num_ranks) if rank not in slow]
    lead = by_rank[slow].mean(axis=0) - by_rank[others].mean(axis=0)
    size = max(float(lead[list(rows)].sum()), 0.0)
    earliest = next((row for row in _EARLIEST_FIRST if abs(lead[row]) >= 0.5 * size), None)
    return earliest is not None and lead[earliest] > 0 and earliest in rows


def _finding(run: RunProfile, blocks: Blocks, found: _Candidate) -> Finding:
    ranks = tuple(run.ranks[place].rank for place in found.ranks)
    num_steps = int(blocks.steps[found.first_cell :].sum())
    is_contended = _contention_ms(run, found) >= policy.CONTENTION_EXPLAINS * found.excess_ms
    is_passing = num_steps * found.step_ms < policy.EVEN_MIN_MS and _is_even(blocks, found)
    needs = "needs" if len(ranks) == 1 else "need"
    since = f" since step {blocks.first_steps[found.first_cell]}" if found.first_cell else ""
    phase = OWN_PHASES[found.phase]
    return Finding(
        kind=found.kind,
        severity=_severity(found, num_steps, is_excused=is_contended or is_passing),
        confidence=confidence(num_steps) if found.is_clear and not (is_contended or is_passing) else "low",
        summary=f"{sentence(ranks_text(ranks))} {needs} {milliseconds(found.excess_ms)} more a step than the others in "
        f"{_NAMES[phase]}{since}: {min(found.share, 1.0):.0%} of everybody's step.",
        action=_ACTIONS[found.kind],
        ranks=ranks,
        phase=phase,
        lost_share=round(min(found.share, 1.0), 4),
        evidence=tuple(_evidence(run, blocks, found)),
    )


_NAMES: Final = {
    "input_wait": "waiting for input",
    "h2d": "copying batches to the device",
    "forward": "the forward",
    "backward": "the backward",
    "optimizer": "the optimizer",
    "residual": "the loop's own code (residual)",
}


def _contention_ms(run: RunProfile, found: _Candidate) -> float:
    """How much longer a step of theirs waited for a core than a step of the others."""
    shares = np.array([np.nan if r.cpu_wait_share is None else r.cpu_wait_share for r in run.ranks])
    is_slow = np.isin(np.arange(len(shares)), found.ranks)
    theirs, others = (float(median(shares[places], axis=0)) for places in (is_slow, ~is_slow))
    return 0.0 if np.isnan(theirs) or np.isnan(others) else (theirs - others) * found.step_ms


def _is_even(blocks: Blocks, found: _Candidate) -> bool:
    """They are slower in all that they do, also in what is no work of the model: their cores are, not their share."""
    by_rank = median(blocks.phases[:, :WAITING, found.first_cell :], axis=2)
    is_slow = np.isin(np.arange(len(by_rank)), found.ranks)
    theirs, others = median(by_rank[is_slow], axis=0), median(by_rank[~is_slow], axis=0)
    is_small = (others < policy.EVEN_MIN_SHARE * found.step_ms) & (theirs < policy.EVEN_MIN_SHARE * found.step_ms)
    return int((~is_small).sum()) > 2 and bool((is_small | (theirs >= policy.EVEN_FACTOR * others)).all())


def _severity(found: _Candidate, num_steps: int, *, is_excused: bool) -> Severity:
    if found.share < policy.STRAGGLER_WARNING or is_excused:
        return "info"
    is_critical = found.share >= policy.STRAGGLER_CRITICAL and num_steps >= policy.STRAGGLER_CRITICAL_STEPS
    return "critical" if is_critical and found.is_clear else "warning"


def _evidence(run: RunProfile, blocks: Blocks, found: _Candidate) -> Iterator[str]:
    is_slow = np.isin(np.arange(len(run.ranks)), found.ranks)
    if found.kind == "INPUT_STRAGGLER":  # it comes in bursts: medians of single steps say little
        loads = np.array([np.nan if rank.load_ms is None else rank.load_ms for rank in run.ranks])
        theirs, others = (float(median(loads[places], axis=0)) for places in (is_slow, ~is_slow))
        if theirs > 0 and others > 0:
            yield f"workers load {milliseconds(theirs)} for a step there, {milliseconds(others)} on the others"
    else:
        by_rank = median(blocks.phases[:, :, found.first_cell :], axis=2)
        theirs, others = (float(median(by_rank[places, found.phase], axis=0)) for places in (is_slow, ~is_slow))
        yield f"{OWN_PHASES[found.phase]}: {milliseconds(theirs)} there, {milliseconds(others)} on the others"
        theirs, others = (float(median(by_rank[places, WAITING], axis=0)) for places in (is_slow, ~is_slow))
        if others > theirs:
            yield f"the others wait {milliseconds(others)} a step in their backward, it waits {milliseconds(theirs)}"
    if _is_loading_unknown(run, found):
        yield "its workers' loading was not timed: the others may be hardly quicker, with batches ready in time"
    elif not found.is_clear:
        yield "the waiting for others was not seen as such, so cause and effect may be exchanged"
    if _is_even(blocks, found):
        yield "it is slower in all phases alike, as a rank is whose core is slower or shared with somebody"
    contention_ms = _contention_ms(run, found)
    if contention_ms >= policy.CONTENTION_EXPLAINS * found.excess_ms:
        yield f"it had no core for {milliseconds(contention_ms)} a step more than they: the host is overcommitted"


def _is_input_of_all(run: RunProfile, found: _Candidate) -> bool:
    """Whether the other ranks' loaders are hardly quicker, so that input limits all of them.

    How long workers load tells; where that is not known, whether the others waited for input too in their first steps.
    """
    theirs = [run.ranks[place].load_ms for place in found.ranks]
    others = [rank.load_ms for place, rank in enumerate(run.ranks) if place not in found.ranks]
    known, known_others = ([value for value in values if value is not None] for values in (theirs, others))
    if known and known_others:
        return float(np.median(known_others)) >= policy.INPUT_ALL_LOAD * float(np.median(known))
    early = np.array([rank.early_ms[INPUT_WAIT] for place, rank in enumerate(run.ranks) if place not in found.ranks])
    early = early[~np.isnan(early)]
    return len(early) > 0 and float(np.median(early)) >= policy.INPUT_ALL_WAIT * found.excess_ms


def _is_loading_unknown(run: RunProfile, found: _Candidate) -> bool:
    """Workers load, and nobody counted: the others may be hardly quicker."""
    is_input = found.kind == "INPUT_STRAGGLER"
    return is_input and any(rank.num_workers > 0 and rank.load_ms is None for rank in run.ranks)
