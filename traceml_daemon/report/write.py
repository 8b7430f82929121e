"""Writes the reports of a run: the failure first, because it needs no database."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from pathlib import Path

from traceml_client.protocol.artifacts import (
    FAILURE_FILE,
    FAILURE_TEXT_FILE,
    HTML_FILE,
    SUMMARY_FILE,
    SUMMARY_TEXT_FILE,
)
from traceml_client.protocol.atomic_files import write_atomically
from traceml_client.protocol.errors import TracemlError
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_client.protocol.manifest import encode_json
from traceml_daemon.errors import ReportError
from traceml_daemon.log_files.contrasting import contrast_run
from traceml_daemon.report.facts import Reported, RunFacts
from traceml_daemon.report.failure import diagnose, diagnose_history, with_evidence
from traceml_daemon.report.form import FailureReport, FinalSummary
from traceml_daemon.report.text import failure_lines, failure_sentence, failure_text, finding_lines, summary_text

_log = logging.getLogger("traceml_daemon")


def write_reports(run_dir: Path, facts: RunFacts, has_history: bool, *, has_html: bool = False) -> Reported:
    """Write failure_report and final_summary as this run asks for them. Blocks.

    A provisional summary comes without a failure report: training is still ending.

    Raises:
        ReportError: one of them could not be made or written; the others are there. It carries what is known.
    """
    reported, faults = Reported(), list[str]()
    try:
        failure = None if facts.is_provisional else _diagnose(run_dir, facts, faults)
        if failure is not None:
            reported = Reported(verdict_lines=failure_lines(failure), failure_sentence=failure_sentence(failure))
        if not facts.is_provisional:
            _write_failure(run_dir, failure)
        if has_history:
            summary = _write_summary(run_dir, replace(facts, warnings=(*facts.warnings, *faults)), failure)
            if failure is None and not facts.is_provisional:
                reported = Reported(verdict_lines=finding_lines(summary.primary_diagnosis))
            if not facts.is_provisional and (has_html or (run_dir / HTML_FILE).exists()):
                _write_html(run_dir, summary, faults)
    except OSError as error:
        raise ReportError(f"{error.filename or run_dir}: {error.strerror or error}", reported) from None
    except TracemlError as error:
        raise ReportError(str(error), reported) from None
    return replace(reported, faults=tuple(faults))


def _diagnose(run_dir: Path, facts: RunFacts, faults: list[str]) -> FailureReport | None:
    diagnosis = diagnose(facts, run_dir)
    if diagnosis is None:
        return None
    report = with_evidence(diagnosis, run_dir)
    try:
        return contrast_run(report, run_dir)
    except Exception as error:  # noqa: BLE001 - lines that are no proof must not cost the report
        faults.append(_sentence("the ranks' streams could not be compared", error))
        return report


def _sentence(what: str, error: Exception) -> str:
    """On what was lost; the log has the traceback."""
    _log.exception(what)
    if isinstance(error, OSError):
        return f"{what}: {error.strerror or error}"
    blame = "" if isinstance(error, TracemlError) else "a fault of TraceML itself: "
    return f"{blame}{what}: {str(error) or type(error).__name__}"


def _write_failure(run_dir: Path, failure: FailureReport | None) -> None:
    """A report of an earlier finalization that is not true any more is taken away."""
    if failure is None:
        for name in (FAILURE_FILE, FAILURE_TEXT_FILE):
            with contextlib.suppress(FileNotFoundError):
                (run_dir / name).unlink()
        return
    write_atomically(run_dir / FAILURE_FILE, encode_json(failure))
    write_atomically(run_dir / FAILURE_TEXT_FILE, failure_text(failure).encode(errors="backslashreplace"))


def _write_summary(run_dir: Path, facts: RunFacts, failure: FailureReport | None) -> FinalSummary:
    """The text after the JSON: whoever sees the text finds what it was made from."""
    from traceml_daemon.report.summary import build_summary  # numpy: 0.1 s that a run without history never pays

    summary = build_summary(run_dir / DATABASE_FILE, facts, failure, diagnose_history(facts, run_dir))
    write_atomically(run_dir / SUMMARY_FILE, encode_json(summary))
    write_atomically(run_dir / SUMMARY_TEXT_FILE, summary_text(summary).encode(errors="backslashreplace"))
    return summary


def _write_html(run_dir: Path, summary: FinalSummary, faults: list[str]) -> None:
    """The same once more for a browser: where that fails the report is there all the same, so it is only said."""
    try:
        from traceml_daemon.report.html import summary_html  # jinja2: 0.1 s that only this option pays

        write_atomically(run_dir / HTML_FILE, summary_html(summary).encode(errors="backslashreplace"))
    except Exception as error:  # noqa: BLE001 - a page that cannot be drawn must not cost the report
        faults.append(_sentence(f"{HTML_FILE} could not be written", error))
