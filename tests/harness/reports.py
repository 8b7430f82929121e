"""Summaries to draw: a healthy run, a failed one with a restart, one of 1,024 ranks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.harness.facts import Rank, error, run_facts
from tests.harness.noisy_run import write_noisy_run
from traceml_client.protocol.manifest import MissingRank
from traceml_daemon.report.form import FinalSummary
from traceml_daemon.report.measured_form import Line
from traceml_daemon.report.saved import read_summary

SLOW_RANK = 700


def healthy(folder: Path, num_ranks: int = 4) -> FinalSummary:
    return read_summary(write_noisy_run(folder / "healthy", 1, num_ranks=num_ranks, stall_every=150))


def failed(folder: Path) -> FinalSummary:
    """Rank 1 raised in its second attempt; rank 0 is collateral; rank 2 never came back."""
    hostile = "label <script>alert(1)</script> out of range & beyond " + "x" * 200
    first = Rank(rank=1, attempt=0, exit_code=1, died_ms=9000.0, state="lost")
    ranks = [
        Rank(
            rank=0, error=error("RuntimeError", "Connection closed by peer", at_ms=1300.0), exit_code=1, died_ms=1400.0
        ),
        first,
        Rank(rank=1, attempt=1, error=error("ValueError", hostile, at_ms=1000.0), exit_code=1, died_ms=1900.0),
        Rank(rank=2, signal="SIGKILL", exit_code=None, died_ms=2000.0, state="lost"),
    ]
    missing = MissingRank(rank=2, last_step=20, last_seen_at=None, why="killed by SIGKILL")
    facts = run_facts(ranks, missing=(missing,), warnings=("node 1's launcher was lost",))
    return read_summary(write_noisy_run(folder / "failed", 2, num_ranks=3, facts=facts))


def wide(folder: Path, num_ranks: int = 1024, num_cells: int = 32) -> FinalSummary:
    """As a report of so many ranks looks: one of them is slow."""
    small = read_summary(write_noisy_run(folder / "wide", 3, num_ranks=1, num_steps=num_cells * 4))
    (rank,), (of_rank,), (memory,) = small.ranks, small.step_time.by_rank, small.memory.by_rank
    (series,) = small.series.ranks
    replace = msgspec.structs.replace
    factors = [1.8 if place == SLOW_RANK else 1 + place % 7 / 100 for place in range(num_ranks)]
    slow_ms = replace(of_rank.phases["step"], p50_ms=99.0)
    return replace(
        small,
        topology=replace(small.topology, nnodes=128, nproc_per_node=8, world_size=num_ranks),
        telemetry=replace(small.telemetry, ranks_expected=num_ranks, ranks_finished=tuple(range(num_ranks))),
        ranks=tuple(replace(rank, rank=place) for place in range(num_ranks)),
        step_time=replace(
            small.step_time,
            by_rank=tuple(
                replace(
                    of_rank, rank=place, phases={**of_rank.phases, "step": slow_ms} if factor > 1.5 else of_rank.phases
                )
                for place, factor in enumerate(factors)
            ),
        ),
        memory=replace(small.memory, by_rank=tuple(replace(memory, rank=place) for place in range(num_ranks))),
        series=replace(
            small.series,
            ranks=tuple(
                replace(
                    series, rank=place, step_ms=_times(series.step_ms, factor), rss_mib=_times(series.rss_mib, factor)
                )
                for place, factor in enumerate(factors)
            ),
        ),
    )


def _times(line: Line, factor: float) -> Line:
    return tuple(None if value is None else value * factor * (1 + place % 5 / 50) for place, value in enumerate(line))
