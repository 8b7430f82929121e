"""Ingest and finalize of our daemon: load from `generator`, figures from the kernel, losses from its own report."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.aggregator import Aggregator, running
from benchmarks.machine import cpu_s, rss_mb, wait_until

ROOT = Path(__file__).parents[1]
FILL_STEPS_PER_FRAME = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFigures:
    """One load, from the first frame to the written report."""

    num_ranks: int
    num_steps: int
    """Of each rank."""
    steps_per_frame: int
    steps_per_s: float
    """Stored, by the acknowledgements."""
    cpu_us_per_step: float
    """Of the daemon, while it took the load."""
    rss_idle_mb: float
    rss_ingest_mb: float
    """The peak up to the last acknowledgement."""
    rss_peak_mb: float
    """The peak through finalization."""
    wire_bytes_per_step: float
    database_bytes_per_step: float
    finalize_s: float
    """From the first marker to the manifest that says it is done."""
    num_lost: int
    steps_per_s_asked: int = 0
    """The pace; 0 is as fast as it can."""
    answer_p99_ms: float | None = None
    """From a ping to its answer, while it took the load at that pace: no less than what the loop lagged."""
    rss_growth_mb: float | None = None
    """Of the second half of the load over the first."""


def measure(num_ranks: int, num_steps: int, steps_per_frame: int, steps_per_s: int = 0) -> DaemonFigures:
    """Put one load on a fresh daemon, at a pace or as fast as it can.

    Raises:
        ValueError: the report does not account for every step, so the figures mean nothing.
    """
    total = num_ranks * num_steps
    with running(num_ranks) as daemon:
        rss_idle = rss_mb(daemon.pid)
        with _generator(daemon, num_ranks, num_steps, steps_per_frame, steps_per_s) as generator:
            connected = _answer(generator)
            cpu_before_s = cpu_s(daemon.pid)
            with _watched_rss(daemon.pid) as rss_series:
                stored = _command(generator)
            stored_s = stored["stored_s"]
            cpu_used_s = cpu_s(daemon.pid) - cpu_before_s
            rss_ingest = rss_mb(daemon.pid, is_peak=True)
            _go(generator)
            finalize_s = wait_until(daemon.is_finalized, "the report", within_s=300)
            _answer(generator)
        rss_peak = rss_mb(daemon.pid, is_peak=True)
        return DaemonFigures(
            num_ranks=num_ranks,
            num_steps=num_steps,
            steps_per_frame=steps_per_frame,
            steps_per_s=total / stored_s,
            cpu_us_per_step=1e6 * cpu_used_s / total,
            rss_idle_mb=rss_idle,
            rss_ingest_mb=rss_ingest,
            rss_peak_mb=rss_peak,
            wire_bytes_per_step=connected["num_bytes"] / total,
            database_bytes_per_step=daemon.database_bytes() / total,
            finalize_s=finalize_s,
            num_lost=_num_lost(daemon, num_ranks, num_steps),
            steps_per_s_asked=steps_per_s,
            answer_p99_ms=_percentile(stored["answer_ms"], 99) if steps_per_s else None,
            rss_growth_mb=_growth(rss_series) if steps_per_s else None,
        )


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[len(ordered) * percent // 100]


def _growth(series: list[float]) -> float:
    half = len(series) // 2
    return max(series[half:]) - max(series[:half])


@contextlib.contextmanager
def _watched_rss(pid: int) -> Iterator[list[float]]:
    """Resident memory every half second while the block runs."""
    series, is_over = [rss_mb(pid)], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.5):
            series.append(rss_mb(pid))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield series
    finally:
        is_over.set()
        thread.join()


def _num_lost(daemon: Aggregator, num_ranks: int, num_steps: int) -> int:
    """Steps that the summary does not have. Raises ValueError where they are not even counted as dropped."""
    summary = daemon.summary()
    steps = [entry["attempts"][-1]["steps"] for entry in summary["ranks"]]
    lost = num_ranks * num_steps - sum(steps)
    counted = summary["telemetry"]["records"]["dropped"]
    if len(steps) != num_ranks or lost != counted:
        raise ValueError(f"{lost} steps of {len(steps)} ranks are not in the report, {counted} are counted as dropped")
    return lost


@contextlib.contextmanager
def _generator(daemon: Aggregator, *load: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.generator", str(daemon.port), *map(str, load)],
        cwd=ROOT,
        env={**os.environ, "TRACEML_TOKEN": daemon.token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        if process.wait(30):
            raise RuntimeError(f"the generator ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


def _go(generator: subprocess.Popen[str]) -> None:
    assert generator.stdin is not None
    generator.stdin.write("\n")
    generator.stdin.flush()


def _answer(generator: subprocess.Popen[str]) -> dict[str, Any]:
    assert generator.stdout is not None
    line = generator.stdout.readline()
    if not line:
        raise RuntimeError(f"the generator ended with {generator.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _command(generator: subprocess.Popen[str]) -> dict[str, Any]:
    _go(generator)
    return _answer(generator)
