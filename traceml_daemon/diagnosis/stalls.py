"""Steps far longer than their neighbours: at regular distance, or for a checkpoint or a validation pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.finding import Finding, Severity
from traceml_daemon.diagnosis.profile import INPUT_WAIT, OWN_PHASES, WAITING, Floats, Integers, RankProfile, RunProfile
from traceml_daemon.diagnosis.wording import confidence, milliseconds, sentence


def find_checkpoints(run: RunProfile) -> Iterator[Finding]:
    """Of the rank that loses most to them."""
    lost = [(_unusual_ms(rank) / rank.elapsed_ms, place) for place, rank in enumerate(run.ranks) if rank.elapsed_ms > 0]
    share, place = max(lost, default=(0.0, 0))
    if share < policy.CHECKPOINT_INFO:
        return
    rank = run.ranks[place]
    is_unusual = rank.spikes.is_unusual
    count, total_ms = int(is_unusual.sum()), _unusual_ms(rank)
    is_worth = count >= policy.CHECKPOINT_MIN_COUNT and total_ms >= policy.CHECKPOINT_MIN_TOTAL_MS
    yield Finding(
        kind="CHECKPOINT_HEAVY",
        severity="warning" if is_worth and share >= policy.CHECKPOINT_WARNING else "info",
        confidence=confidence(rank.num_steps),
        summary=f"Checkpoints and validation passes take {share:.0%} of the time: {count} steps hold one, each "
        f"{milliseconds(total_ms / count)} longer than its neighbours.",
        action="Save and validate less often, save asynchronously (torch.distributed.checkpoint.async_save), or "
        "validate on fewer batches.",
        ranks=tuple(r.rank for r in run.ranks if _unusual_ms(r) >= 0.5 * total_ms),
        phase="residual",
        lost_share=round(share, 4),
        evidence=(f"steps {_steps_text(rank.spikes.steps[is_unusual])}",),
    )


def find_stalls(run: RunProfile) -> Iterator[Finding]:
    """Regular ones of the rank that loses most to them itself; irregular ones are a busy machine's daily bread."""
    found = [stalls for rank in run.ranks if (stalls := _Stalls(rank)).is_regular]
    if not found:
        return
    worst = max(found, key=lambda stalls: stalls.total_ms)
    rank, share = worst.rank, worst.total_ms / worst.rank.elapsed_ms
    if share < policy.STALL_WARNING / 2:
        return
    needed = policy.INPUT_STALL_WARNING if worst.row == INPUT_WAIT else policy.STALL_WARNING
    is_worth = share >= needed and worst.total_ms >= policy.STALL_MIN_TOTAL_MS
    severity: Severity = "warning" if is_worth else "info"
    phase = OWN_PHASES[worst.row]
    hint = "Workers that start anew each epoch cost this: persistent_workers=True. " if worst.row == INPUT_WAIT else ""
    yield Finding(
        kind="PERIODIC_STALLS",
        severity=severity,
        confidence=confidence(rank.num_steps),
        summary=f"Every {worst.period:.0f} steps one takes {milliseconds(float(np.median(worst.excess_ms)))} "
        f"longer, in {phase}: {share:.0%} of the time.",
        action=f"{hint}Look for what the script does every {worst.period:.0f} steps.",
        ranks=tuple(s.rank.rank for s in found if s.total_ms >= 0.5 * worst.total_ms),
        phase=phase,
        lost_share=round(share, 4),
        evidence=(sentence(f"{len(worst.steps)} stalls: steps {_steps_text(worst.steps)}"),),
    )


class _Stalls:
    """One rank's own long steps: not those in which it only waited, nor those that are known to be unusual."""

    def __init__(self, rank: RankProfile) -> None:
        self.rank = rank
        spikes = rank.spikes
        is_own = ~spikes.is_unusual & (spikes.rows != WAITING) & (spikes.excess_ms >= policy.STALL_FLOOR_MS)
        is_own &= spikes.steps >= policy.STALL_FIRST_STEP
        if is_own.any():  # small ones beside them are chance
            large_ms = float(np.quantile(spikes.excess_ms[is_own], policy.STALL_LARGE_QUANTILE))
            is_own &= spikes.excess_ms >= policy.STALL_SAME_SIZE * large_ms
        self.period = 0.0
        self.steps: Integers = spikes.steps[is_own]
        self.excess_ms: Floats = spikes.excess_ms[is_own]
        self.total_ms = float(self.excess_ms.sum())
        by_row = np.bincount(spikes.rows[is_own], weights=self.excess_ms, minlength=WAITING)
        self.row = int(np.argmax(by_row[:WAITING]))

    @property
    def is_regular(self) -> bool:
        if len(self.steps) < policy.STALL_MIN_COUNT or self.rank.elapsed_ms <= 0:
            return False
        distances = np.diff(self.steps)
        self.period = float(np.median(distances))
        if self.period <= 1.0:
            return False
        multiples = np.maximum(np.round(distances / self.period), 1.0)
        slack = np.maximum(1.0, policy.STALL_TOLERANCE * self.period)
        is_met = (np.abs(distances - multiples * self.period) <= slack) & (multiples <= 3)
        is_met &= distances > slack  # two in a row are one stall that lasted
        return bool(is_met.mean() >= policy.STALL_REGULAR)


def _unusual_ms(rank: RankProfile) -> float:
    return float(np.maximum(rank.spikes.excess_ms[rank.spikes.is_unusual], 0.0).sum())


def _steps_text(steps: Integers) -> str:
    shown = ", ".join(map(str, steps[:8].tolist()))
    return shown + (", ..." if len(steps) > 8 else "")
