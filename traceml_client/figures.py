"""What was measured, as a flat dict of numbers for an experiment tracker.

`summary` and `final_summary` read this rank's own recorder: nothing is sent or waited for. The report on all ranks is
written after the script has ended; `final_summary(RUN)` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from traceml_client import steps
from traceml_client.protocol import ring
from traceml_client.protocol.columns import (
    DEVICE_MEMORY_SAMPLE,
    IS_SKIPPED,
    IS_WARMUP,
    PHASES,
    PROCESS_SAMPLE,
    RECORD_BYTES,
    RECORD_WORDS,
    SAMPLE_STREAM,
    STEP_STREAM,
)

_Columns = list[list[int]]
"""Of ring records: tags, end times, six values."""
_NS_PER_MS: Final = 1e6
_RECENT_SAMPLES: Final = 64
"""Far from those that the sampling thread writes over meanwhile."""


def summary(last_steps: int = 100) -> dict[str, float]:
    """This rank's figures over its last steps, for logging inside the loop.

    Keys are `traceml/steps`, `traceml/skipped`, `traceml/throughput_steps_per_s`, `traceml/rss_bytes`,
    `traceml/device_peak_bytes`, and for `step`, `input_wait`, `h2d`, `forward`, `backward`, `optimizer`, `residual`:
    `traceml/<phase>_p50_ms`, `_p95_ms`, `_mean_ms` and `_share`. What was not measured has no key. Warm-up and skipped
    steps are left out. Empty where telemetry is off. Never raises.
    """
    return steps.ask_recorder("summary", lambda reader: _figures(reader, last_steps))


def final_summary(run: str | os.PathLike[str] | None = None) -> dict[str, float]:
    """The same over all steps of this rank that its recorder holds, the last 65,535 at least; takes 0.2 s for them.

    With `run`, a run's folder: the figures of its `final_summary.json`, over all ranks, after the run; also
    `traceml/ranks` and `traceml/exit_code`. Empty where there is none. Never raises.
    """
    if run is not None:
        return _of_report(Path(run))
    return steps.ask_recorder("final_summary", lambda reader: _figures(reader, reader.head(STEP_STREAM)))


def _figures(reader: ring.RingReader, last_steps: int) -> dict[str, float]:
    tags, _, *values = _read(reader, STEP_STREAM, last_steps)
    kept = [place for place, tag in enumerate(tags) if not tag & (IS_SKIPPED | IS_WARMUP)]
    figures: dict[str, float] = {"steps": len(kept), "skipped": sum(1 for tag in tags if tag & IS_SKIPPED)}
    if kept:
        whole = [values[-1][place] for place in kept]
        phases = {name: [values[number][place] for place in kept] for number, name in enumerate(PHASES)}
        figures |= _phase_figures(phases, whole)
    figures |= _memory(_read(reader, SAMPLE_STREAM, _RECENT_SAMPLES))
    return {f"traceml/{name}": value for name, value in figures.items()}


def _phase_figures(phases: dict[str, list[int]], whole: list[int]) -> dict[str, float]:
    """`phases`: nanoseconds by step, negative where not measured. A phase counts as 0 in the mean where it was not."""
    measured = {name: [ns for ns in column if ns >= 0] for name, column in phases.items()}
    claimed = [sum(max(ns, 0) for ns in row) for row in zip(*phases.values(), strict=True)]
    measured["residual"] = [max(0, ns - part) for ns, part in zip(whole, claimed, strict=True)]
    measured["step"] = whole
    total_ns = sum(whole)
    figures: dict[str, float] = {}
    for name, column in measured.items():
        if column:
            column.sort()
            figures[f"{name}_p50_ms"] = _quantile(column, 0.50) / _NS_PER_MS
            figures[f"{name}_p95_ms"] = _quantile(column, 0.95) / _NS_PER_MS
            figures[f"{name}_mean_ms"] = sum(column) / len(whole) / _NS_PER_MS
            figures[f"{name}_share"] = sum(column) / total_ns if total_ns else 0.0
    if total_ns:
        figures["throughput_steps_per_s"] = 1e9 * len(whole) / total_ns
    return figures


def _memory(samples: _Columns) -> dict[str, float]:
    """The last resident size, and the peak of the fullest device."""
    kinds, _, *values = samples
    rss = [values[1][place] for place, kind in enumerate(kinds) if kind == PROCESS_SAMPLE and values[1][place] >= 0]
    peaks = [
        max(values[1][place], values[3][place]) for place, kind in enumerate(kinds) if kind == DEVICE_MEMORY_SAMPLE
    ]
    figures: dict[str, float] = {"rss_bytes": rss[-1]} if rss else {}
    return figures | ({"device_peak_bytes": max(peaks)} if peaks else {})


def _read(reader: ring.RingReader, stream: int, most: int) -> _Columns:
    head = reader.head(stream)
    _, data = reader.read(stream, max(0, head - most), most)
    words = memoryview(data[: len(data) // RECORD_BYTES * RECORD_BYTES]).cast("q")
    return [words[place::RECORD_WORDS].tolist() for place in range(RECORD_WORDS)]


def _quantile(ordered: Sequence[int], share: float) -> float:
    """Linear between neighbours, as in the report."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _of_report(run_dir: Path) -> dict[str, float]:
    """Whatever is wrong with the file, a tracker gets fewer numbers and no error."""
    try:
        report = msgspec.json.decode((run_dir / "final_summary.json").read_bytes())
        section, training = report["step_time"], report["training"]
        figures: dict[str, Any] = {
            "ranks": len(report["ranks"]),
            "steps": section["window"]["steps"],
            "skipped": section["window"]["skipped"],
            "exit_code": training["exit_code"],
            "throughput_steps_per_s": section["throughput_steps_per_s"],
            "rss_bytes": report["memory"]["overall"]["peak_rss_bytes"],
            "device_peak_bytes": report["memory"]["overall"]["peak_allocated_bytes"],
        }
        for phase, times in section["phases"].items():
            figures |= {f"{phase}_{figure}": value for figure, value in (times or {}).items()}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        return {}
    return {f"traceml/{name}": value for name, value in figures.items() if isinstance(value, int | float)}
