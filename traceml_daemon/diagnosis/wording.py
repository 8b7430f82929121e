"""Numbers, ranks and confidence in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.finding import Confidence

_MAX_SPANS: Final = 8


def confidence(num_steps: int) -> Confidence:
    """It grows with the number of steady steps."""
    if num_steps >= policy.HIGH_STEPS:
        return "high"
    return "medium" if num_steps >= policy.MEDIUM_STEPS else "low"


def milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value >= 20 else f"{value:.2g} ms" if value >= 0.01 else "0 ms"


def size(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def duration(seconds: float) -> str:
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:.0f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.0f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-7, 9`: short also for a thousand of them."""
    ordered = sorted(ranks)
    spans: list[tuple[int, int]] = []
    for rank in ordered:
        if spans and spans[-1][1] + 1 == rank:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans[:_MAX_SPANS])
    more = ", ..." if len(spans) > _MAX_SPANS else ""
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {text}{more}"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
