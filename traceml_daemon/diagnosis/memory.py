"""Memory that grows while a rank trains, is uneven between ranks, or is nearly used up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.finding import Confidence, Finding, Severity
from traceml_daemon.diagnosis.profile import MemoryTrack, NodeProfile, RunProfile
from traceml_daemon.diagnosis.robust import mann_kendall, theil_sen, thinned
from traceml_daemon.diagnosis.wording import duration, ranks_text, sentence, size


@dataclass(frozen=True, slots=True)
class _Creep:
    rank: int
    node_rank: int
    track: MemoryTrack
    bytes_per_s: float
    growth: float
    level: float
    num_samples: int
    z: float

    @property
    def is_confirmed(self) -> bool:
        is_large = self.growth >= policy.CREEP_CONFIRMED_SHARE * self.level
        return self.num_samples >= policy.CREEP_CONFIRMED_SAMPLES and is_large


def find_creep(run: RunProfile) -> Iterator[Finding]:
    """One finding for each kind of memory that grows."""
    creeps = [
        creep for rank in run.ranks for track in rank.memory if (creep := _creep(rank.rank, rank.node_rank, track))
    ]
    for what in dict.fromkeys(creep.track.what for creep in creeps):
        yield _creep_finding([creep for creep in creeps if creep.track.what == what])


def _creep(rank: int, node_rank: int, track: MemoryTrack) -> _Creep | None:
    lead = int(np.ceil(policy.CREEP_LEAD_SHARE * len(track.times_s)))
    times, level = track.times_s[lead:], track.num_bytes[lead:]
    if len(times) < policy.CREEP_MIN_SAMPLES or times[-1] <= times[0]:
        return None
    if level[-1] - level[0] < policy.CREEP_FLOOR_BYTES / 2:  # of a thousand ranks, most end here
        return None
    x, y = thinned(times, level)
    slope, z, span = theil_sen(x, y), mann_kendall(y), times[-1] - times[0]
    growth = slope * span
    half = len(x) // 2
    is_large = growth >= max(policy.CREEP_FLOOR_BYTES, policy.CREEP_SHARE * level[0])
    is_lasting = theil_sen(x[half:], y[half:]) >= policy.CREEP_LAST_HALF * max(slope, theil_sen(x[:half], y[:half]))
    is_gradual = np.diff(level).max() <= policy.CREEP_LARGEST_STEP * growth
    if not (is_large and z >= policy.CREEP_Z and is_lasting and is_gradual):
        return None
    return _Creep(rank, node_rank, track, slope, growth, float(level[0]), len(times), z)


def _creep_finding(creeps: list[_Creep]) -> Finding:
    worst = max(creeps, key=lambda creep: creep.bytes_per_s)
    exhausted_s = _exhausted_s(creeps)
    is_confirmed = worst.is_confirmed
    is_soon = exhausted_s is not None and exhausted_s <= policy.CREEP_CRITICAL_S
    severity: Severity = "critical" if is_confirmed and is_soon else "warning"
    trust: Confidence = "low" if worst.num_samples < 2 * policy.CREEP_MIN_SAMPLES else "medium"
    end = f"; at this rate {worst.track.limit} is used up in {duration(exhausted_s)}" if exhausted_s is not None else ""
    ranks = tuple(creep.rank for creep in creeps)
    return Finding(
        kind="MEMORY_CREEP",
        severity=severity,
        confidence="high" if is_confirmed else trust,
        summary=f"{sentence(ranks_text(ranks))}: {worst.track.what} grows by {size(worst.bytes_per_s * 60)} a minute "
        f"while it trains ({'confirmed' if is_confirmed else 'early sign'}){end}.",
        action="Look for what is kept from step to step: tensors with their graph (use .item() or .detach()), "
        "caches without a bound, outputs that are collected.",
        ranks=ranks,
        evidence=(
            f"rank {worst.rank}: {size(worst.level)} at the start, {size(worst.level + worst.growth)} at the end of "
            f"{worst.num_samples} samples; z {worst.z:.1f} (Mann-Kendall)",
        ),
    )


def _exhausted_s(creeps: list[_Creep]) -> float | None:
    """Until the first limit is met: a node's ranks fill its memory together, a device's memory is one rank's."""
    by_limit: dict[tuple[int, object], list[_Creep]] = {}
    for creep in creeps:
        owner = creep.rank if creep.track.what.startswith("memory of device") else None
        by_limit.setdefault((creep.node_rank, owner), []).append(creep)
    times = [
        max(0.0, min(creep.track.headroom_bytes or 0.0 for creep in group)) / sum(c.bytes_per_s for c in group)
        for group in by_limit.values()
        if all(creep.track.headroom_bytes is not None for creep in group)
    ]
    return min(times, default=None)


def find_imbalance(run: RunProfile, creeping: set[int]) -> Iterator[Finding]:
    """`creeping`: ranks whose growth is named already."""
    for what in dict.fromkeys(track.what for rank in run.ranks for track in rank.memory):
        levels = {
            rank.rank: float(np.median(track.num_bytes[len(track.num_bytes) // 2 :]))
            for rank in run.ranks
            for track in rank.memory
            if track.what == what and len(track.num_bytes) and rank.rank not in creeping
        }
        if len(levels) < 2:
            continue
        usual = float(np.quantile(list(levels.values()), 0.5, method="lower"))
        high = {
            rank: level
            for rank, level in levels.items()
            if level >= policy.IMBALANCE_FACTOR * usual and level - usual >= policy.IMBALANCE_FLOOR_BYTES
        }
        if high and len(high) <= policy.MAX_CULPRIT_SHARE * len(levels):
            yield _imbalance_finding(what, high, usual)


def _imbalance_finding(what: str, high: dict[int, float], usual: float) -> Finding:
    return Finding(
        kind="MEMORY_IMBALANCE",
        severity="warning",
        confidence="medium",
        summary=f"{sentence(ranks_text(high))}: {size(max(high.values()))} of {what}, {size(usual)} on the others.",
        action="Look at what these ranks hold alone: uneven shards, a copy of the whole model or data set, logs. The "
        "fullest rank limits the batch size of all.",
        ranks=tuple(high),
        evidence=tuple(f"rank {rank}: {size(level)}" for rank, level in list(high.items())[:8]),
    )


def find_pressure(run: RunProfile) -> Iterator[Finding]:
    for node in run.nodes:
        ranks = tuple(rank.rank for rank in run.ranks if rank.node_rank == node.node_rank)
        for what, share, is_ours in _used(run, node):
            if share >= policy.PRESSURE_SHARE:
                yield Finding(
                    kind="MEMORY_PRESSURE",
                    severity="warning" if is_ours else "info",
                    confidence="high" if is_ours else "low",
                    summary=f"Node {node.node_rank}: {share:.0%} of {what} was used"
                    f"{'' if is_ours else ', most of it not by this run'}.",
                    action="Leave more room: smaller batches, fewer DataLoader workers, sharded or offloaded state.",
                    ranks=ranks,
                )


def _used(run: RunProfile, node: NodeProfile) -> Iterator[tuple[str, float, bool]]:
    """(what, share, whether this run holds most of it)."""
    if node.max_cgroup_memory_share is not None:
        yield "the cgroup's memory", node.max_cgroup_memory_share, True
    if node.max_memory_share is not None:
        yield "its memory", node.max_memory_share, (node.ours_memory_share or 0.0) >= policy.OURS_SHARE
    for device, share in node.max_device_share.items():
        yield f"the device memory of rank {device}", share, True
