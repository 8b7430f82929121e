"""What a check found, and what it may know of the failed run: its report, the evidence, what was measured. Blocks.

Everything here is text and numbers to compare with. Paths and names come from logs and are only looked at.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.launch import layout_node_dir
from traceml_client.protocol.manifest import read_manifest
from traceml_client.protocol.node import NodeReport
from traceml_daemon.report.form import FailureReport, FinalSummary
from traceml_daemon.report.saved import read_node_reports, read_summary
from traceml_daemon.triage.entry import Check


@dataclass(frozen=True, slots=True)
class CheckResult:
    state: Literal["gone", "still there", "cannot be checked here"]
    why: str
    """What was looked at, and what was found."""


def gone(why: str) -> CheckResult:
    return CheckResult("gone", why)


def still_there(why: str) -> CheckResult:
    return CheckResult("still there", why)


def not_checkable(why: str) -> CheckResult:
    return CheckResult("cannot be checked here", why)


class NotCheckable(Exception):
    """This machine, or the evidence, does not tell; the text says what is missing."""


def printable(text: str) -> str:
    """Text of a log on one line of a terminal, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text)


_TAIL_BYTES: Final = 64 * 1024
_MAX_VALUES: Final = 8


@dataclass(frozen=True)
class Case:
    run_dir: Path
    report: FailureReport
    check: Check
    environ: Mapping[str, str]
    nodes: Mapping[int, NodeReport]
    """By node index; those whose report is in the run folder."""
    nproc_per_node: int | None
    summary: FinalSummary | None
    """Null where nothing was measured."""

    @property
    def node(self) -> NodeReport | None:
        """The node that failed; the only one, where the report names none."""
        if self.report.node_rank is None and len(self.nodes) == 1:
            return next(iter(self.nodes.values()))
        return self.nodes.get(self.report.node_rank) if self.report.node_rank is not None else None

    def values(self, what: str) -> list[str]:
        """What the check is about, read from the evidence: of the first text and pattern that tell it.

        Raises:
            NotCheckable: there is none; `what` names it in the sentence.
        """
        for text in texts(self):
            for pattern in self.check.find:
                found = [":".join(match.groups()) for match in re.finditer(pattern, text)]
                if found:
                    return list(dict.fromkeys(found))[:_MAX_VALUES]
        raise NotCheckable(f"the evidence names no {what}")

    def has_in_evidence(self, pattern: str) -> bool:
        return any(re.search(pattern, text) for text in texts(self))


def read_case(run_dir: Path, report: FailureReport, check: Check, environ: Mapping[str, str]) -> Case:
    """What of the run can be read; a damaged part is as good as none."""
    nodes = {report.node_index: report for report in read_node_reports(run_dir)}
    nproc, summary = None, None
    with contextlib.suppress(StoreError):
        nproc = read_manifest(run_dir).topology.nproc_per_node
    with contextlib.suppress(StoreError):
        summary = read_summary(run_dir)
    return Case(run_dir, report, check, environ, nodes, nproc, summary)


def texts(case: Case) -> Iterator[str]:
    """Where the evidence is looked for, the most trusted first."""
    yield "\n".join(item.text for item in case.report.evidence if not item.contrast)
    yield case.report.summary
    node, rank = case.node, case.report.initiating_rank
    for end in node.ranks if node is not None else ():
        if end.rank == rank and end.error is not None:
            yield f"{end.error.type}: {end.error.message}\n{end.error.traceback}"
    for path in _streams(case.run_dir, case.report.node_rank, rank):
        yield _tail(path)


def _streams(run_dir: Path, node_index: int | None, rank: int | None) -> Sequence[Path]:
    node = run_dir / layout_node_dir(node_index or 0)
    own = sorted(node.glob(f"ranks/rank_{rank}/attempt_*/stderr.log")) if rank is not None else []
    return [*reversed(own), node / "training.stderr.log"]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
