"""`traceml view`: a run's report as text, of an unfinished run made first from what is there; and a run's status."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from traceml_client.protocol.artifacts import FAILURE_TEXT_FILE, SUMMARY_FILE, SUMMARY_TEXT_FILE
from traceml_client.protocol.atomic_files import write_atomically
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_client.protocol.manifest import (
    FILE_NAME,
    Manifest,
    TelemetryFacts,
    TelemetryReason,
    read_manifest,
)
from traceml_daemon.diagnosis.wording import ranks_text
from traceml_daemon.errors import ReportError
from traceml_daemon.report.text import harmless
from traceml_daemon.run.run_manifest import may_be_alive
from traceml_daemon.run.run_status import STALLED_S, RunStatus, read_status


def report_text(run_dir: Path) -> str:
    """The summary; without one (`--no-history`) the failure and the run's status. Blocks.

    Raises:
        StoreError: the run is alive, or nothing in its folder can be read.
        ReportError: it is unfinished, and its reports cannot be made.
    """
    _finish(run_dir)
    summary = _read(run_dir / SUMMARY_TEXT_FILE)
    if summary is not None:
        return summary
    failure = _read(run_dir / FAILURE_TEXT_FILE)
    status = status_text(read_status(run_dir, now_ns=time.time_ns()))
    return status if failure is None else f"{failure}\n{status}"


def write_html(run_dir: Path, path: Path) -> None:
    """Draw the saved summary as one page. Blocks.

    Raises:
        StoreError: the run is alive, or it has no summary that can be read.
        ReportError: it is unfinished and cannot be finished, or the page cannot be written.
    """
    from traceml_daemon.report.html import summary_html
    from traceml_daemon.report.saved import read_summary

    if not (run_dir / SUMMARY_FILE).is_file() or (run_dir / FILE_NAME).is_file():
        _finish(run_dir)
    page = summary_html(read_summary(run_dir))
    try:
        write_atomically(path, page.encode(errors="backslashreplace"))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None


def _finish(run_dir: Path) -> None:
    """Make the reports of a run that nobody finished."""
    found = _manifest_of(run_dir)
    if found is None or _is_unfinished(run_dir, found):
        _refuse_if_alive(run_dir, found)
        from traceml_daemon.run.offline import finalize  # most runs are finished, and looking at them should be quick

        try:
            finalize(run_dir, reason=_cause(found))
        except OSError as error:
            raise ReportError(f"{error.filename or run_dir}: {error.strerror}") from None


def _manifest_of(run_dir: Path) -> Manifest | None:
    """Null where it is damaged and the database may say the same.

    Raises:
        StoreError: there is no database either.
    """
    try:
        return read_manifest(run_dir)
    except StoreError:
        if not (run_dir / DATABASE_FILE).is_file():
            raise
        return None


def _is_unfinished(run_dir: Path, found: Manifest) -> bool:
    """Nobody wrote the end of it, or its report is missing while the measurements are there."""
    has_summary = (run_dir / SUMMARY_TEXT_FILE).is_file()
    return found.telemetry_status == "pending" or (not has_summary and (run_dir / DATABASE_FILE).is_file())


def _cause(found: Manifest | None) -> TelemetryReason | None:
    """Why nobody made its reports; null where somebody did, and they are gone."""
    if found is None or found.telemetry_status not in ("complete", "degraded"):
        return (found.telemetry_reason if found is not None else None) or "aggregator_died"
    return found.telemetry_reason


def _refuse_if_alive(run_dir: Path, found: Manifest | None) -> None:
    if found is not None and found.lease is not None and may_be_alive(found, now_ns=time.time_ns()):
        raise StoreError(
            f"{run_dir} is still alive (held until {found.lease.expires_at}): traceml status shows it;"
            " its report is made when it ends"
        )


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


_MAX_RANKS: Final = 64


def status_text(status: RunStatus) -> str:
    return harmless("\n".join((*_heading(status), *_ranks(status))) + "\n")


def _heading(status: RunStatus) -> Iterator[str]:
    training = status.training
    yield f"Run {status.run_name}: {status.status} ({status.run_dir})"
    if status.status == "abandoned":
        yield f"Nobody holds it any more; traceml view {status.run_dir} makes its report"
    ending = f", exit code {training.exit_code}" if training.exit_code is not None else ""
    ending += f", ended by {training.signal}" if training.signal is not None else ""
    yield f"Training: started {training.started_at or 'not yet'}, ended {training.ended_at or 'not yet'}{ending}"
    if status.failure_sentence is not None:
        yield f"Failure: {status.failure_sentence}"
    for node in training.nodes:
        if node.why is not None:
            yield f"Node {node.node_rank}: {node.why}"
    yield _telemetry(status.telemetry)
    if status.stalled_ranks:
        yield f"Stalled: no step on {ranks_text(status.stalled_ranks)} for {STALLED_S:.0f} s"


def _telemetry(facts: TelemetryFacts) -> str:
    records = facts.records
    reason = f" ({facts.reason})" if facts.reason else ""
    authenticated = "" if facts.authenticated else "; not authenticated"
    rejected = f", {facts.frames_rejected} frames refused" if facts.frames_rejected else ""
    return (
        f"Telemetry: {facts.status}{reason}; {records.stored} step records stored, {records.salvaged} salvaged,"
        f" {records.dropped} dropped{rejected}{authenticated}"
    )


def _ranks(status: RunStatus) -> Iterator[str]:
    finished = sum(rank.state == "finished" for rank in status.ranks)
    yield f"Ranks: {len(status.ranks)} expected, {finished} finished"
    if status.ranks:
        yield "  rank  state      last step  last seen"
    for rank in status.ranks[:_MAX_RANKS]:
        seen = "never" if rank.last_seen_s is None else f"{_duration(rank.last_seen_s)} ago"
        yield f"  {rank.rank:4}  {rank.state:9}  {rank.last_step:9}  {seen}"
    if len(status.ranks) > _MAX_RANKS:
        yield f"  and {len(status.ranks) - _MAX_RANKS} more; --json has all of them"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
