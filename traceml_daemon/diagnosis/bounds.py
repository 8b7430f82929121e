"""What a step is made of: which phase the ranks that set the pace spend their time in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.finding import Finding, Severity
from traceml_daemon.diagnosis.profile import (
    BACKWARD,
    FORWARD,
    H2D,
    INPUT_WAIT,
    NUM_ROWS,
    OPTIMIZER,
    OWN_PHASES,
    RESIDUAL,
    WAITING,
    Floats,
    RunProfile,
)
from traceml_daemon.diagnosis.robust import Blocks, median
from traceml_daemon.diagnosis.wording import confidence, milliseconds

_EVEN: Final = 0.05
"""Of a step: ranks whose waiting differs by less set the pace alike."""


class StepShares:
    """The mean step by phase, from medians over blocks.

    A rank that waits for another one waits for what the other one does; so the waiting is divided as the own time of
    the ranks is that wait least, all but the exchange itself, for which also the last rank to arrive waits.
    """

    def __init__(self, blocks: Blocks, places: Sequence[int]) -> None:
        """`places`: the ranks that count, by their place in the profile."""
        self.num_steps = int(blocks.steps.sum())
        phases = blocks.phases[list(places)]
        by_rank = median(phases, axis=2)
        with_steps = by_rank[~np.isnan(by_rank).any(axis=1)]
        self.mean_ms: Floats = with_steps.mean(axis=0) if len(with_steps) else np.zeros(NUM_ROWS)
        self.step_ms = float(self.mean_ms.sum())
        exchange_ms = float(median(np.fmin.reduce(phases[:, WAITING], axis=0), axis=0)) if len(with_steps) else 0.0
        self._shared_ms = self.step_ms - exchange_ms
        waits = with_steps[:, WAITING] - with_steps[:, WAITING].min(initial=np.inf)
        weights = 1.0 / (waits + _EVEN * max(self.step_ms, 1e-9))
        self._own_ms: Floats = (with_steps[:, :WAITING] * weights[:, None]).sum(axis=0)

    def time_of(self, *rows: int) -> float:
        """Milliseconds of a step that these phases cost all ranks."""
        own = self._own_ms
        return float(self._shared_ms * own[list(rows)].sum() / own.sum()) if own.sum() > 0 else 0.0

    def share(self, *rows: int) -> float:
        return self.time_of(*rows) / self.step_ms if self.step_ms > 0 else 0.0


def find_bounds(run: RunProfile, shares: StepShares) -> Iterator[Finding]:
    """Every phase that stands out; the largest is what limits the run."""
    yield from _input(run, shares)
    yield from _transfer(run, shares)
    yield from _optimizer(run, shares)
    yield from _residual(run, shares)
    yield from _compute(run, shares)


def _input(run: RunProfile, shares: StepShares) -> Iterator[Finding]:
    share, wait_ms = shares.share(INPUT_WAIT), shares.time_of(INPUT_WAIT)
    if share < policy.INPUT_INFO:
        return
    severity: Severity = "info"
    if share >= policy.INPUT_WARNING and wait_ms >= policy.INPUT_FLOOR_MS:
        is_clear = share >= policy.INPUT_CRITICAL and shares.num_steps >= policy.MEDIUM_STEPS
        severity = "critical" if is_clear else "warning"
    yield Finding(
        kind="INPUT_BOUND",
        severity=severity,
        confidence=confidence(shares.num_steps),
        summary=f"Waiting for input takes {share:.0%} of a step: {milliseconds(wait_ms)} of "
        f"{milliseconds(shares.step_ms)}.",
        action="Load faster: more DataLoader workers (num_workers, prefetch_factor, persistent_workers), cheaper or "
        "cached transforms, larger files nearer to the node.",
        ranks=_all_ranks(run),
        phase="input_wait",
        lost_share=round(share, 4),
        evidence=_evidence(shares),
    )


def _transfer(run: RunProfile, shares: StepShares) -> Iterator[Finding]:
    share, time_ms = shares.share(H2D), shares.time_of(H2D)
    if share >= policy.TRANSFER_WARNING:
        yield Finding(
            kind="TRANSFER_BOUND",
            severity="warning" if time_ms >= policy.TRANSFER_FLOOR_MS else "info",
            confidence=confidence(shares.num_steps),
            summary=f"Copying batches to the device takes {share:.0%} of a step: {milliseconds(time_ms)}.",
            action="Pin memory (pin_memory=True) and copy with non_blocking=True; send small types, convert there.",
            ranks=_all_ranks(run),
            phase="h2d",
            lost_share=round(share, 4),
            evidence=_evidence(shares),
        )


def _optimizer(run: RunProfile, shares: StepShares) -> Iterator[Finding]:
    share, time_ms = shares.share(OPTIMIZER), shares.time_of(OPTIMIZER)
    if share >= policy.OPTIMIZER_INFO and time_ms >= policy.DOMINANT_FLOOR_MS:
        yield Finding(
            kind="OPTIMIZER_HEAVY",
            severity="warning" if share >= policy.OPTIMIZER_WARNING and not _is_contended(run) else "info",
            confidence=confidence(shares.num_steps),
            summary=f"The optimizer takes {share:.0%} of a step: {milliseconds(time_ms)}.",
            action="Use a fused or foreach optimizer, accumulate gradients over more micro-batches, or shard it.",
            ranks=_all_ranks(run),
            phase="optimizer",
            lost_share=round(share, 4),
            evidence=_evidence(shares),
        )


def _residual(run: RunProfile, shares: StepShares) -> Iterator[Finding]:
    share, time_ms = shares.share(RESIDUAL), shares.time_of(RESIDUAL)
    if share >= policy.RESIDUAL_INFO and time_ms >= policy.DOMINANT_FLOOR_MS:
        where = "" if "input_wait" in run.measured else "; batches that come from no torch DataLoader are in it"
        yield Finding(
            kind="RESIDUAL_HEAVY",
            severity="info",
            confidence=confidence(shares.num_steps),
            summary=f"{share:.0%} of a step ({milliseconds(time_ms)}) is in no phase: the loop's own code{where}.",
            action="Look at what the loop does beside model and optimizer: logging, metrics, .item(), batches.",
            ranks=_all_ranks(run),
            phase="residual",
            lost_share=round(share, 4),
            evidence=_evidence(shares),
        )


def _compute(run: RunProfile, shares: StepShares) -> Iterator[Finding]:
    share, time_ms = shares.share(FORWARD, BACKWARD, OPTIMIZER), shares.time_of(FORWARD, BACKWARD, OPTIMIZER)
    if share >= policy.COMPUTE_INFO and time_ms >= policy.DOMINANT_FLOOR_MS:
        yield Finding(
            kind="COMPUTE_BOUND",
            severity="info",
            confidence=confidence(shares.num_steps),
            summary=f"Model and optimizer take {share:.0%} of a step: {milliseconds(time_ms)}.",
            action="Nothing stands in the model's way. To go faster: mixed precision, torch.compile, larger batches.",
            ranks=_all_ranks(run),
            lost_share=None,
            evidence=_evidence(shares),
        )


def _is_contended(run: RunProfile) -> bool:
    """Work that many threads share suffers most where cores are taken by others; an optimizer is such work."""
    shares = [rank.cpu_wait_share for rank in run.ranks if rank.cpu_wait_share is not None]
    return bool(shares) and float(np.median(shares)) >= policy.CONTENTION_SHARE


def balanced(run: RunProfile, shares: StepShares) -> Finding:
    return Finding(
        kind="BALANCED",
        severity="info",
        confidence=confidence(shares.num_steps),
        summary=f"Nothing stands out in {shares.num_steps} steps of {milliseconds(shares.step_ms)}.",
        action="No action is needed.",
        ranks=_all_ranks(run),
        evidence=_evidence(shares),
    )


def _evidence(shares: StepShares) -> tuple[str, ...]:
    total = shares.mean_ms.sum()
    parts = [
        f"{name} {milliseconds(value)} ({value / total:.0%})"
        for name, value in zip((*OWN_PHASES, "waiting for other ranks"), shares.mean_ms, strict=True)
        if total > 0 and value / total >= 0.005
    ]
    return (f"mean step over {shares.num_steps} steps: {', '.join(parts)}",)


def _all_ranks(run: RunProfile) -> tuple[int, ...]:
    return tuple(rank.rank for rank in run.ranks)
