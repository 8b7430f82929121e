"""Cells, spikes and samples to the profile that the diagnosis reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceml_client.protocol.columns import DEVICE_MEMORY_SAMPLE, LOADER_SAMPLE, NOT_MEASURED, PROCESS_SAMPLE
from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.profile import (
    BACKWARD,
    NUM_ROWS,
    OWN_PHASES,
    WAITING,
    Floats,
    MemoryTrack,
    NodeProfile,
    RankProfile,
    RunProfile,
)
from traceml_daemon.diagnosis.robust import thinned
from traceml_daemon.report.cells import StepCells
from traceml_daemon.report.measured_form import GpuSystem, Level, NodeSystem
from traceml_daemon.report.measurements import Integers
from traceml_daemon.report.samples import RankSamples, largest
from traceml_daemon.report.spikes import SpikeFinder
from traceml_daemon.report.statistics import AttemptSteps

_STEP: Final = len(OWN_PHASES)


@dataclass(frozen=True, slots=True)
class Track:
    """Memory while the rank trained; `device` is null for the process's own."""

    device: int | None
    times_s: Floats
    num_bytes: Floats
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class RankParts:
    """What is kept of one rank until all have been read: only then is it known what its memory runs into."""

    profile: RankProfile
    """Without its memory."""
    tracks: tuple[Track, ...]
    cells: StepCells


def rank_parts(
    rank: int, node_rank: int, cells: StepCells, spikes: SpikeFinder, steps: AttemptSteps, samples: RankSamples
) -> RankParts:
    middle_ns = (steps.first_end_ns + steps.last_end_ns) // 2
    early = samples.cpu_wait_share(steps.first_end_ns, middle_ns)
    late = samples.cpu_wait_share(middle_ns, steps.last_end_ns)
    num_workers, load_ms = _loading(steps, samples)
    early_ms = _own(cells.early_ns[:-1], cells.early_ns[-1])
    profile = RankProfile(
        rank=rank,
        node_rank=node_rank,
        num_steps=int(cells.counts.sum()),
        counts=cells.counts,
        total_ms=_own(cells.total_ns, cells.waited_ns),
        median_step_ms=cells.median_step_ms(),
        early_ms=early_ms.mean(axis=1) if early_ms.shape[1] else np.full(NUM_ROWS, np.nan),
        is_wait_measured=cells.is_wait_measured,
        elapsed_ms=spikes.elapsed_ns / 1e6,
        spikes=spikes.spikes(),
        num_workers=num_workers,
        load_ms=load_ms,
        cpu_wait_share=samples.cpu_wait_share(steps.first_end_ns, steps.last_end_ns),
        cpu_wait_halves=(early, late) if early is not None and late is not None else None,
    )
    return RankParts(profile, tuple(_tracks(steps, samples)), cells)


def run_profile(
    parts: Iterable[RankParts], systems: Mapping[int, NodeSystem], measured: Iterable[str], *, has_accelerator: bool
) -> RunProfile:
    """`systems`: by node; `measured`: phases that some rank measured."""
    parts = tuple(parts)
    return RunProfile(
        steps_per_cell=parts[0].cells.axis.steps_per_cell if parts else 1,
        ranks=tuple(_with_memory(part, systems.get(part.profile.node_rank)) for part in parts),
        nodes=tuple(
            _node_profile(node, [p for p in parts if p.profile.node_rank == index]) for index, node in systems.items()
        ),
        measured=frozenset(measured),
        has_accelerator=has_accelerator,
    )


def _loading(steps: AttemptSteps, samples: RankSamples) -> tuple[int, float | None]:
    """(workers, milliseconds of loading for one step, divided by the workers)."""
    workers, batches, loading_ns, *_ = samples.values[LOADER_SAMPLE]
    num_workers = largest(workers) or 0
    num_steps = steps.num_completed + steps.num_skipped
    if num_workers == 0 or num_steps == 0 or not largest(batches):
        return num_workers, None
    return num_workers, (largest(loading_ns) or 0) / 1e6 / num_workers / num_steps


def _tracks(steps: AttemptSteps, samples: RankSamples) -> Iterable[Track]:
    yield from _track(None, None, steps, *samples.column(PROCESS_SAMPLE, 1))
    values, ends = samples.values[DEVICE_MEMORY_SAMPLE], samples.ends[DEVICE_MEMORY_SAMPLE]
    index, _, _, peak, _, total = values  # the peak: what is allocated changes within a step
    for device in np.unique(index).tolist():
        is_its = (index == device) & (peak != NOT_MEASURED)
        if is_its.any():
            yield from _track(device, largest(total[is_its]), steps, ends[is_its], peak[is_its])


def _track(
    device: int | None, total: int | None, steps: AttemptSteps, ends_ns: Integers, values: Integers
) -> Iterable[Track]:
    """Only while it trained: before and afterwards memory comes and goes in large pieces."""
    is_training = (ends_ns >= steps.first_end_ns) & (ends_ns <= steps.last_end_ns)
    if is_training.any():
        times_s = (ends_ns[is_training] - steps.first_end_ns) / 1e9
        yield Track(device, *thinned(times_s, values[is_training].astype(np.float64)), total)


def _own(rows_ns: Floats | Integers, waited_ns: Floats | Integers) -> Floats:
    """Milliseconds by OWN_PHASES and the waiting, from rows by `cells.CELL_ROWS`."""
    own = np.empty((NUM_ROWS, rows_ns.shape[1]))
    own[:_STEP] = rows_ns[:_STEP]
    own[BACKWARD] -= waited_ns
    own[WAITING] = waited_ns
    return own / 1e6


def _with_memory(part: RankParts, node: NodeSystem | None) -> RankProfile:
    return replace(part.profile, memory=tuple(_memory_track(track, node) for track in part.tracks))


def _memory_track(track: Track, node: NodeSystem | None) -> MemoryTrack:
    if track.device is None:
        what = "resident memory"
        limit, headroom = _host_limit(node)
    else:
        limit = f"device {track.device}"
        what = f"memory of {limit}"
        headroom = float(track.total_bytes - track.num_bytes[-1]) if track.total_bytes else None
    return MemoryTrack(
        what=what, times_s=track.times_s, num_bytes=track.num_bytes, limit=limit, headroom_bytes=headroom
    )


def _host_limit(node: NodeSystem | None) -> tuple[str, float | None]:
    """What a process's memory runs into first, and how much is left of it."""
    limits: list[tuple[float, str]] = []
    if node is not None and node.memory_used_bytes is not None and node.memory_total_bytes:
        limits.append((node.memory_total_bytes - node.memory_used_bytes.last, "the node's memory"))
    if node is not None and node.cgroup_memory_bytes is not None and node.cgroup_memory_limit_bytes:
        limits.append((node.cgroup_memory_limit_bytes - node.cgroup_memory_bytes.last, "the cgroup's memory"))
    if not limits:
        return "the node's memory", None
    headroom, name = min(limits)
    return name, headroom


def _node_profile(node: NodeSystem, parts: list[RankParts]) -> NodeProfile:
    ours = sum(float(track.num_bytes.max()) for part in parts for track in part.tracks if track.device is None)
    used = node.memory_used_bytes
    return NodeProfile(
        node_rank=node.node_rank,
        cpu_share=node.cpu_percent.mean / 100.0 if node.cpu_percent is not None else None,
        max_memory_share=_share(used, node.memory_total_bytes),
        ours_memory_share=ours / used.max if used is not None and used.max > 0 else None,
        max_shm_share=_share(node.shm_used_bytes, node.shm_total_bytes),
        max_cgroup_memory_share=_share(node.cgroup_memory_bytes, node.cgroup_memory_limit_bytes),
        throttled_share=node.cgroup_throttled_share,
        gpu_share={gpu.rank: gpu.utilization_percent.mean / 100.0 for gpu in node.gpus if gpu.utilization_percent},
        max_device_share=_device_shares(parts),
        gpu_troubles=tuple(trouble for gpu in node.gpus for trouble in _troubles(gpu)),
    )


def _device_shares(parts: list[RankParts]) -> dict[int, float]:
    """What tensors filled; the allocator's cache can be given back."""
    tracks = [(part.profile.rank, track) for part in parts for track in part.tracks if track.device is not None]
    return {rank: float(track.num_bytes.max()) / track.total_bytes for rank, track in tracks if track.total_bytes}


def _troubles(gpu: GpuSystem) -> Iterator[str]:
    name = f"device {gpu.device} of rank {gpu.rank}"
    if (gpu.throttled_share or 0.0) >= policy.GPU_THROTTLED_SHARE:
        reasons = " and ".join(gpu.throttle_reasons)
        yield f"{name} was slowed down by {reasons} for {gpu.throttled_share:.0%} of the time"
    if gpu.ecc_uncorrected:
        yield f"{name} counts {gpu.ecc_uncorrected} uncorrected ECC errors"
    if gpu.last_xid:
        yield f"{name} reported Xid {gpu.last_xid}"


def _share(level: Level | None, total: int | None) -> float | None:
    return level.max / total if level is not None and total else None
