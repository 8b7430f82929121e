"""`final_summary.html`: one file without a script and without a request, for a screen, a phone and paper.

Everything comes from the summary, so that a saved one gives the same page. Text from the run is escaped by the
templates; nothing here makes markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2

from traceml_daemon.diagnosis.wording import ranks_text
from traceml_daemon.report.charts.axes import Chart, step_ticks, time_ticks
from traceml_daemon.report.charts.heat_map import heat_map
from traceml_daemon.report.charts.lines import phases_over_time, rank_chart, share_bar
from traceml_daemon.report.charts.timeline import timeline
from traceml_daemon.report.form import FinalSummary
from traceml_daemon.report.text import collateral_text, outcome_lines, size_text, step_caption, telemetry_lines

MAX_RANK_ROWS: Final = 32
"""Of more ranks those that did not finish and the slowest are listed."""
_CSS_OF: Final = {"info": "note", "warning": "warn", "critical": "bad"}


def summary_html(summary: FinalSummary) -> str:
    """The whole page."""
    has_failed = summary.training.status != "completed"
    shares = {name: times.share for name, times in summary.step_time.phases.items() if times and name != "step"}
    page: dict[str, Any] = {
        "summary": summary,
        "has_failed": has_failed,
        "outcome": tuple(outcome_lines(summary)),
        "collateral": collateral_text(summary.failure) if summary.failure is not None else "",
        "others": tuple(found for found in summary.findings if found != summary.primary_diagnosis),
        "charts": charts(summary),
        "window": step_caption(summary.step_time, has_failed=has_failed),
        "largest_phase": max(shares, key=lambda name: shares[name], default=None),
        "rank_rows": tuple(_rank_rows(summary)),
        "telemetry": tuple(telemetry_lines(summary)),
        "css_of": _CSS_OF,
    }
    return _templates().get_template("report.html").render(page)


def charts(summary: FinalSummary) -> dict[str, Chart | None]:
    """By name; null where there is nothing to draw."""
    series = summary.series
    num_steps = series.steps_per_cell * len(series.first_steps)
    steps = step_ticks(num_steps) if num_steps else ()
    times = time_ticks(series.seconds_per_span * len(series.times_s)) if series.times_s else ()
    unusual = {"validation or checkpoint": [(step - 0.5) / num_steps for step in series.unusual_steps]}
    step_ms = {each.rank: each.step_ms for each in series.ranks}
    rss, device = ({each.rank: getattr(each, name) for each in series.ranks} for name in ("rss_mib", "device_mib"))
    since = "since training started"
    return {
        "timeline": timeline(summary),
        "shares": share_bar(summary.step_time.phases),
        "step-time": rank_chart("step-time", "Step time over the run", "ms", step_ms, steps, "step", unusual),
        "heat-map": heat_map(step_ms, steps),
        "phases": phases_over_time(series.phase_ms, steps),
        "rss": rank_chart("rss", "Resident memory of each rank", "MiB", rss, times, since),
        "device": rank_chart("device", "Device memory allocated by each rank", "MiB", device, times, since),
    }


@cache
def _templates() -> jinja2.Environment:
    folder = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=folder, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"ranks_text": ranks_text, "size_text": size_text}
    return environment


def _rank_rows(summary: FinalSummary) -> Iterator[tuple[int, int, int, str, str, str]]:
    """(rank, attempts, steps, median step, peak memory, state): those that did not finish first, then the slowest.

    A small run's in their own order.
    """
    medians = {r.rank: step.p50_ms for r in summary.step_time.by_rank if (step := r.phases.get("step")) is not None}
    peaks = {each.rank: each.peak_rss_bytes for each in summary.memory.by_rank}
    missing = {each.rank: each.why for each in summary.telemetry.ranks_missing}
    ranks = list(summary.ranks)
    if len(ranks) > MAX_RANK_ROWS:
        ranks.sort(key=lambda rank: (rank.rank not in missing, -medians.get(rank.rank, 0.0)))
    for rank in ranks[:MAX_RANK_ROWS]:
        median, peak = medians.get(rank.rank), peaks.get(rank.rank)
        last = rank.attempts[-1]
        state = last.state if last.exit_code in (None, 0) else f"exit code {last.exit_code}"
        p50, memory = "-" if median is None else f"{median:.3f}", "-" if peak is None else size_text(peak)
        yield (rank.rank, len(rank.attempts), last.steps, p50, memory, missing.get(rank.rank) or state)
