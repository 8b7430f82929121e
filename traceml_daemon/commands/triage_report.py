"""A triage verdict in the form of `failure_report.json`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from traceml_daemon.log_files.catalog import advice
from traceml_daemon.report.form import Collateral, Evidence, FailureReport, TorchrunView
from traceml_daemon.triage.ends import signal_of
from traceml_daemon.triage.observations import Place
from traceml_daemon.triage.own_source import source_of
from traceml_daemon.triage.verdict import Verdict
from traceml_daemon.triage.wording import SIGNAL_NAMES, headline

MAX_EVIDENCE = 8


def build_report(verdict: Verdict, files: Sequence[str]) -> FailureReport:
    """`files`: the names under which evidence is quoted, in the order in which they were read."""
    evidence = tuple(
        Evidence(files[place.file], _line(place, verdict), place.quote) for place in _chosen(verdict.evidence)
    )
    file = shlex.quote(evidence[0].file if evidence else files[0] if files else "-")
    raised = verdict.initiator.raised if verdict.initiator is not None else None
    number = signal_of(verdict.exit_code) if verdict.exit_code is not None else 0
    return FailureReport(
        **advice(verdict.category, verdict.confidence, stderr=file, run="."),
        initiating_rank=verdict.rank,
        exit_code=verdict.exit_code if not number else None,
        signal=SIGNAL_NAMES.get(number),
        summary=headline(verdict),
        evidence=evidence,
        collateral=tuple(Collateral(rank, reason) for rank, reason in sorted(verdict.collateral.items())),
        torchrun=_torchrun(verdict),
        source=source_of(raised) if raised is not None else None,
    )


def _line(place: Place, verdict: Verdict) -> int | None:
    """None behind a carriage return that a progress bar left: half of the tools count it as the end of a line."""
    return place.line if place.line < verdict.first_returns.get(place.file, place.line + 1) else None


def _chosen(places: Sequence[Place]) -> list[Place]:
    """The first of each line, and no more than a reader wants."""
    chosen: dict[tuple[int, int], Place] = {}
    for place in places:
        if place.quote:
            chosen.setdefault((place.file, place.line), place)
    return list(chosen.values())[:MAX_EVIDENCE]


def _torchrun(verdict: Verdict) -> TorchrunView:
    if verdict.torchrun_rank is None:
        return TorchrunView(None, None, "torchrun named no rank in these logs")
    if verdict.rank is None:
        why = "torchrun names the process that it saw end first, which is no proof"
        return TorchrunView(verdict.torchrun_rank, None, why)
    return TorchrunView(verdict.torchrun_rank, verdict.torchrun_why is None, verdict.torchrun_why)
