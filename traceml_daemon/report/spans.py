"""Samples by span of time: equal spans since training started, the same for all ranks and nodes of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceml_daemon.report.cells import Floats, most_cells
from traceml_daemon.report.facts import AttemptFacts
from traceml_daemon.report.measurements import Integers

_MIN_SPAN_S = 0.5
"""Samples come twice a second at most."""


@dataclass(frozen=True, slots=True)
class SpanAxis:
    """Span i begins i * seconds_per_span after `start_ns` (wall clock of the daemon's host)."""

    start_ns: int
    seconds_per_span: float
    num_spans: int

    @classmethod
    def covering(cls, start_ns: int, end_ns: int, num_ranks: int) -> SpanAxis:
        duration_s = max(0.0, (end_ns - start_ns) / 1e9)
        width_s = max(_MIN_SPAN_S, duration_s / most_cells(num_ranks))
        return cls(start_ns, round(width_s, 3), 1 + int(duration_s / width_s))

    def middles_s(self) -> tuple[float, ...]:
        return tuple(round((i + 0.5) * self.seconds_per_span, 2) for i in range(self.num_spans))

    def largest(self, attempt: AttemptFacts, ends_ns: Integers, values: Integers) -> Floats:
        """The largest value of each span, NaN where there is none. `ends_ns`: the rank's monotonic clock."""
        wall_ns = ends_ns + (attempt.wall_minus_monotonic_ns + attempt.clock_offset_ns - self.start_ns)
        places = np.clip(wall_ns // int(self.seconds_per_span * 1e9), 0, self.num_spans - 1)
        found = np.full(self.num_spans, -np.inf)
        np.maximum.at(found, places, values.astype(np.float64))
        return np.where(np.isneginf(found), np.nan, found)
