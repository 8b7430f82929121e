"""The first six lines of a report answer the three questions: which rank, why, and what to do next. All categories."""

from __future__ import annotations

import re

import msgspec
import pytest

from traceml_daemon.commands.diagnosing import build_report
from traceml_daemon.log_files import catalog
from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.report.form import Collateral, FailureReport, TorchrunView
from traceml_daemon.report.text import MAX_LINES, failure_lines, failure_text
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.reader import LogReader

WHO = re.compile(r"\b(ranks?|logs|somebody|job|process|scheduler)\b", re.IGNORECASE)
"""A line that names no rank still says of what it speaks."""


def report_of(category: str) -> FailureReport:
    seen = Observations()
    reader = LogReader(0, load_book(), seen)
    reader.feed(f"{catalog.load_entry(category).example}\n".encode())
    reader.finish()
    return build_report(judge(seen), ("train.log",))


@pytest.mark.parametrize("category", catalog.categories())
def test_rank_cause_and_next_step_are_in_the_first_six_lines(category: str) -> None:
    report = report_of(category)
    lines = failure_lines(report)
    assert lines == tuple(failure_text(report).splitlines()[: len(lines)])
    assert len(lines) <= MAX_LINES
    who, why, *others = lines
    if report.initiating_rank is None:
        assert WHO.search(who)
    else:
        assert f"rank {report.initiating_rank}" in who.lower()
    assert why.startswith(f"Cause: {report.category}, confidence {report.confidence}")
    assert f"Next: {report.next_step}" in others
    assert report.command is None or f"  $ {report.command}" in others


@pytest.mark.parametrize("category", catalog.categories())
def test_nothing_of_that_is_pushed_out_by_what_else_there_is_to_say(category: str) -> None:
    report = msgspec.structs.replace(
        report_of(category),
        initiating_rank=3,
        collateral=tuple(Collateral(rank, "peer_lost") for rank in (0, 1, 2)),
        torchrun=TorchrunView(1, False, "torchrun names the rank whose process it saw end first"),
    )
    lines = failure_lines(report)
    assert [line.split(":")[0] for line in lines[1:5]] == ["Cause", "Collateral", "torchrun names rank 1", "Next"]
    assert report.command is None or lines[5] == f"  $ {report.command}"
    assert all("\n" not in line for line in lines)
