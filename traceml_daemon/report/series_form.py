"""`series` of `final_summary.json`: what charts draw, packed small and bounded also for 1,024 ranks.

Step charts share one axis of cells, time charts another one. A null is a cell without a steady step or without a
sample, never a zero.

* step time over time, per rank: `step_ms` (median) and `step_max_ms` of each rank over `first_steps`
* phase shares over time: `phase_ms`, the mean over ranks by phase; a cell's phases add up to its `step`
* rank x step heat map: the rows of `ranks`, one colour for each value of `step_ms`
* memory over time: `rss_mib` and `device_mib` of each rank over `times_s`
* node load over time: `nodes`, over `times_s`
"""

from __future__ import annotations

import msgspec

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
