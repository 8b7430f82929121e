"""`traceml compare`: what is printed about two runs or a folder of them, and the exit code of a check in CI."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from traceml_client.protocol.errors import ConfigError
from traceml_client.protocol.manifest import encode_json
from traceml_daemon.report.compare import MARGIN_PCT, compare
from traceml_daemon.report.compare_form import Comparison
from traceml_daemon.report.compare_text import comparison_text, run_table, table_text
from traceml_daemon.run import run_lookup

EXIT_INCONCLUSIVE: Final = 3
EXIT_WORSE: Final = 4


def compare_two(dir_a: Path, dir_b: Path, *, is_json: bool, limit_pct: float | None) -> tuple[str, int]:
    """(what is printed, exit code). A limit below the usual margin becomes the margin.

    Raises:
        StoreError: a run's report or database is missing or damaged.
    """
    comparison = compare(dir_a, dir_b, margin_pct=MARGIN_PCT if limit_pct is None else min(MARGIN_PCT, limit_pct))
    text = encode_json(comparison).decode() if is_json else comparison_text(comparison)
    return text, 0 if limit_pct is None else _exit_code(comparison, limit_pct)


def _exit_code(comparison: Comparison, limit_pct: float) -> int:
    if comparison.verdict == "inconclusive":
        return EXIT_INCONCLUSIVE
    step = comparison.step_time
    changes = (step.change_pct, step.mean.change_pct if step.mean is not None else None)
    is_beyond = max(change for change in changes if change is not None) >= limit_pct
    return EXIT_WORSE if comparison.verdict == "worse" and is_beyond else 0


def table(folder: Path, *, is_json: bool) -> str:
    """All runs in a folder.

    Raises:
        ConfigError: there is none.
    """
    found = run_lookup.runs_in(folder)
    if not found:
        raise ConfigError(f"RUN_A: no run in {folder}; give two runs, or a folder of runs")
    rows = run_table([path for path, _ in found])
    return encode_json(rows).decode() if is_json else table_text(rows)
