"""The form of the summary's sections on memory, processes and nodes, and of its `series`, which charts draw.

Lines of the series are packed small and bounded also for 1,024 ranks. Step charts share one axis of cells, time charts
another one. A null is a cell without a steady step or without a sample, never a zero.

* step time over time, per rank: `step_ms` (median) and `step_max_ms` of each rank over `first_steps`
* phase shares over time: `phase_ms`, the mean over ranks by phase; a cell's phases add up to its `step`
* rank x step heat map: the rows of `ranks`, one colour for each value of `step_ms`
* memory over time: `rss_mib` and `device_mib` of each rank over `times_s`
* node load over time: `nodes`, over `times_s`
"""

from __future__ import annotations

import msgspec


class Level(msgspec.Struct, frozen=True):
    """A sampled quantity."""

    mean: float
    max: float
    last: float


class DeviceMemory(msgspec.Struct, frozen=True):
    device: int
    allocated_bytes: Level | None
    reserved_bytes: Level | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    total_bytes: int | None


class MemoryOverall(msgspec.Struct, frozen=True):
    """The largest of all ranks, and which rank that is."""

    peak_rss_bytes: int | None
    peak_rss_rank: int | None
    peak_allocated_bytes: int | None
    peak_allocated_rank: int | None


class RankMemory(msgspec.Struct, frozen=True):
    rank: int
    rss_bytes: Level | None
    peak_rss_bytes: int | None
    devices: tuple[DeviceMemory, ...]


class MemorySection(msgspec.Struct, frozen=True):
    overall: MemoryOverall
    by_rank: tuple[RankMemory, ...]
    reasons: dict[str, str]


class ProcessOverall(msgspec.Struct, frozen=True):
    cpu_percent: float | None
    """The sum over ranks; 100 is one core."""
    max_threads: int | None
    max_open_files: int | None


class RankProcess(msgspec.Struct, frozen=True):
    rank: int
    cpu_percent: float | None
    cpu_wait_share: float | None
    """Of the time: its main thread was ready to run and had no core."""
    max_threads: int | None
    max_open_files: int | None


class ProcessSection(msgspec.Struct, frozen=True):
    overall: ProcessOverall
    by_rank: tuple[RankProcess, ...]
    reasons: dict[str, str]


class GpuSystem(msgspec.Struct, frozen=True):
    """A device that a rank of this run used, as its driver saw it."""

    rank: int
    device: int
    """Its index in that rank's process."""
    utilization_percent: Level | None
    memory_used_bytes: Level | None
    """Of all processes."""
    memory_total_bytes: int | None
    temperature_c: Level | None
    power_w: Level | None
    power_limit_w: float | None
    sm_clock_mhz: Level | None
    throttled_share: float | None
    """Of the samples: clocks held back by heat, by the power cap or by the hardware."""
    throttle_reasons: tuple[str, ...]
    ecc_uncorrected: int | None
    """Since the driver was loaded."""
    last_xid: int | None
    """Reported while this run watched; 0 for none."""


class NodeSystem(msgspec.Struct, frozen=True):
    node_rank: int
    cpu_percent: Level | None
    """100 is all cores of the node."""
    memory_used_bytes: Level | None
    memory_total_bytes: int | None
    shm_used_bytes: Level | None
    shm_total_bytes: int | None
    cgroup_memory_bytes: Level | None
    """Without what can be given back at once (file pages)."""
    cgroup_memory_limit_bytes: int | None
    cgroup_cpu_limit_cores: float | None
    cgroup_throttled_share: float | None
    """Of its scheduling periods in which its quota was used up."""
    disk_read_bytes_per_s: float | None
    disk_written_bytes_per_s: float | None
    """Means over the run, of whole disks."""
    network_received_bytes_per_s: float | None
    network_sent_bytes_per_s: float | None
    """Means over the run, of real interfaces: not of containers, not the loopback."""
    gpus: tuple[GpuSystem, ...]


class SystemOverall(msgspec.Struct, frozen=True):
    """The most loaded node's figures."""

    max_cpu_percent: float | None
    max_memory_used_share: float | None
    max_shm_used_share: float | None


class SystemSection(msgspec.Struct, frozen=True):
    overall: SystemOverall
    by_node: tuple[NodeSystem, ...]
    reasons: dict[str, str]


Line = tuple[float | None, ...]


class RankSeries(msgspec.Struct, frozen=True):
    """Of the rank's last attempt."""

    rank: int
    step_ms: Line
    """The median of each cell's steady steps."""
    step_max_ms: Line
    rss_mib: Line
    """The largest in each span of time."""
    device_mib: Line
    """Allocated on the fullest of its devices; empty where none was measured."""


class NodeSeries(msgspec.Struct, frozen=True):
    node_rank: int
    cpu_percent: Line
    memory_used_mib: Line


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over two axes. Lines of ranks and nodes are empty where nothing was measured."""

    steps_per_cell: int
    first_steps: tuple[int, ...]
    """The first step of each cell."""
    phase_ms: dict[str, Line]
    """By phase, `residual` and `step`: means over all steady steps of all ranks; empty where not measured."""
    unusual_steps: tuple[int, ...]
    """Steps with a validation pass or a checkpoint, of any rank; the first 200."""
    seconds_per_span: float
    times_s: tuple[float, ...]
    """Middle of each span of time, since training started."""
    ranks: tuple[RankSeries, ...]
    nodes: tuple[NodeSeries, ...]
