"""What the measurements say of a run, and what to do about it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal[
    "INPUT_BOUND",
    "TRANSFER_BOUND",
    "COMPUTE_BOUND",
    "OPTIMIZER_HEAVY",
    "RESIDUAL_HEAVY",
    "CHECKPOINT_HEAVY",
    "INPUT_STRAGGLER",
    "COMPUTE_STRAGGLER",
    "TRANSFER_STRAGGLER",
    "STRAGGLER",
    "SLOWDOWN",
    "PERIODIC_STALLS",
    "MEMORY_CREEP",
    "MEMORY_IMBALANCE",
    "MEMORY_PRESSURE",
    "HOST_PRESSURE",
    "LOW_GPU_UTILIZATION",
    "BALANCED",
    "INSUFFICIENT_DATA",
]
Severity = Literal["info", "warning", "critical"]
Confidence = Literal["low", "medium", "high"]

SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence for a person, with the figures that it rests on."""

    kind: Kind
    severity: Severity
    confidence: Confidence
    summary: str
    action: str
    ranks: tuple[int, ...] = ()
    """The global ranks that cause it; all that show it where no rank does more than others."""
    phase: str | None = None
    lost_share: float | None = None
    """Of the time of all steps, 0 to 1: what would be won at most."""
    evidence: tuple[str, ...] = ()
