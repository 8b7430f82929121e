"""What the ranks' own streams say of their failures, read by the triage: causes that no recorder and no exit tells.

Live evidence decides where it is: when an error was raised, in which order processes died. The text gives the cause,
and the errors that a script caught and printed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from traceml_client.protocol.launch import (
    TRAINING_STDERR_FILE,
    TRAINING_STDOUT_FILE,
    layout_node_dir,
    layout_rank_dir,
)
from traceml_client.protocol.node import RankError
from traceml_daemon.core.events import Incarnation
from traceml_daemon.log_files.log_reading import read_file
from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.report.facts import AttemptFacts
from traceml_daemon.report.form import Confidence, Evidence
from traceml_daemon.triage import said
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.own_source import Source
from traceml_daemon.triage.said import Kind as Kind
from traceml_daemon.triage.verdict import Verdict
from traceml_daemon.triage.wording import headline

_MAX_FILE_BYTES: Final = 64 << 20
"""0.5 s of reading; the launcher keeps streams without a cap."""
_STREAMS: Final = ("stderr.log", "stdout.log")


@dataclass(frozen=True, slots=True)
class Reading:
    """The failure that a rank's own stream shows."""

    kind: Kind
    category: str
    confidence: Confidence
    text: str
    """In a few words."""
    evidence: Evidence
    is_raised: bool = False
    """It is an exception of its own, with the traceback that it was printed with."""
    collective: str | None = None
    """The call of torch.distributed in which it waited."""
    source: Source | None = None


class RunReading(NamedTuple):
    """What the streams of the nodes say of the whole run."""

    category: str
    confidence: Confidence
    headline: str
    evidence: tuple[Evidence, ...]


Readings = dict[Incarnation, Reading]


def read_attempts(run_dir: Path, attempts: Iterable[AttemptFacts]) -> Readings:
    """By attempt; one whose streams show no failure, or are not there, has none."""
    found = {}
    for attempt in attempts:
        incarnation = attempt.incarnation
        folder = layout_rank_dir(incarnation.node_index, attempt.place.rank, incarnation.attempt)
        names = [f"{folder}/{name}" for name in _STREAMS]
        spoken = said.strongest(_observe(run_dir, names))
        if spoken is not None:
            confidence: Confidence = "confirmed" if spoken.cause.is_stated else "likely"
            place = spoken.cause.place
            evidence = Evidence(names[place.file], place.line, place.quote)
            found[incarnation] = Reading(
                kind=spoken.kind,
                category=spoken.cause.category,
                confidence=confidence,
                text=spoken.text,
                evidence=evidence,
                is_raised=spoken.cause.raised is not None,
                collective=spoken.collective,
                source=spoken.source,
            )
    return found


def read_run(run_dir: Path, node_indexes: Iterable[int]) -> RunReading | None:
    """The cause that torchrun's own streams state; null where they only speak of consequences."""
    names = [
        f"{layout_node_dir(index)}/{name}"
        for index in node_indexes
        for name in (TRAINING_STDERR_FILE, TRAINING_STDOUT_FILE)
    ]
    verdict: Verdict = judge(_observe(run_dir, names))
    if verdict.confidence == "unknown" or verdict.category == "ok":
        return None
    evidence = tuple(Evidence(names[place.file], place.line, place.quote) for place in verdict.evidence[:4])
    return RunReading(verdict.category, verdict.confidence, headline(verdict), evidence)


def of_error(error: RankError) -> said.Said:
    """What an exception's type, message and traceback say."""
    return said.of_exception(error.type, error.message, error.traceback, load_book())


def _observe(run_dir: Path, names: Iterable[str]) -> Observations:
    seen = Observations()
    for index, name in enumerate(names):
        path = run_dir / name
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_size <= _MAX_FILE_BYTES:
                read_file(path, index, seen)
    return seen
