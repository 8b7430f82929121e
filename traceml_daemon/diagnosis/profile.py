"""What a diagnosis is made from: a run's steps and samples, condensed to a size that does not grow with the run.

Times are milliseconds unless a name says otherwise. Arrays are numpy's; NaN where a cell has no steady step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

OWN_PHASES: Final = ("input_wait", "h2d", "forward", "backward", "optimizer", "residual")
"""What a rank does itself; `backward` without the waiting for other ranks, where that was measured."""
INPUT_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, RESIDUAL = range(6)
WAITING: Final = 6
"""Row of the waiting inside the backward."""
NUM_ROWS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Spikes:
    """Steps far longer than their neighbours, and all that hold a validation pass or a checkpoint; the first ones."""

    steps: Integers
    excess_ms: Floats
    """Over the neighbours' median."""
    rows: Integers
    """OWN_PHASES or WAITING: where most of the excess is."""
    is_unusual: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrack:
    """One kind of memory of one rank while it trained."""

    what: str
    """`resident memory`, `memory of device 0`."""
    times_s: Floats
    num_bytes: Floats
    limit: str
    """What it runs into."""
    headroom_bytes: float | None
    """Left below that limit at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    rank: int
    node_rank: int
    num_steps: int
    """Steady ones."""
    counts: Integers
    """Steady steps of each cell."""
    total_ms: Floats
    """Shape (NUM_ROWS, cells): of OWN_PHASES and the waiting, over all steps of the cell."""
    median_step_ms: Floats
    early_ms: Floats
    """Shape (NUM_ROWS,): means of the first steady steps, before queues and caches have filled; NaN without any."""
    is_wait_measured: bool
    elapsed_ms: float
    """All steps but the warm-up, unusual ones included."""
    spikes: Spikes
    memory: tuple[MemoryTrack, ...] = ()
    num_workers: int = 0
    """Of its DataLoader."""
    load_ms: float | None = None
    """Loading for one step, divided by the workers: how fast it can be at best. Null without forked workers."""
    cpu_wait_share: float | None = None
    """Of the time, how long the training thread was ready to run and had no core."""
    cpu_wait_halves: tuple[float, float] | None = None
    """The same share in the run's first and second half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """Means over the run unless the name says otherwise; null where not measured. Shares are 0 to 1."""

    node_rank: int
    cpu_share: float | None = None
    max_memory_share: float | None = None
    ours_memory_share: float | None = None
    """Of the memory in use, what this run's ranks hold."""
    max_shm_share: float | None = None
    max_cgroup_memory_share: float | None = None
    throttled_share: float | None = None
    """Of the cgroup's scheduling periods."""
    gpu_share: dict[int, float] = field(default_factory=dict)
    """Utilisation of each rank's device."""
    max_device_share: dict[int, float] = field(default_factory=dict)
    """Of each rank's device, what its tensors filled at most."""
    gpu_troubles: tuple[str, ...] = ()
    """What a GPU reported of itself: throttling, ECC errors, Xid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfile:
    steps_per_cell: int
    ranks: tuple[RankProfile, ...]
    nodes: tuple[NodeProfile, ...] = ()
    measured: frozenset[str] = frozenset(OWN_PHASES)
    """Phases that some rank measured."""
    has_accelerator: bool = False
