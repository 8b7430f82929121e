"""Who failed first, and of what: the truth, torchrun's answer and ours, of one run and as README's table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.catalogue import Case, Fault
from tests.faults.runner import Outcome

_ROOT_CAUSE = re.compile(rb"Root Cause \(first observed failure\):.*?\n[^\n]*?rank\s*:\s*(\d+)", re.DOTALL)
_HANG = "hang"
ABSTENTION = "insufficient_evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What the first report of a run names; ranks are global, null where nobody is named."""

    fault: Fault
    torchrun_rank: int | None
    rank: int | None
    category: str
    confidence: str
    is_torchrun_contradicted: bool
    script: str | None
    """The name of the file whose line the report shows."""

    @property
    def is_rank_right(self) -> bool:
        return self.fault.initiating_rank is None or self.rank == self.fault.initiating_rank

    @property
    def is_category_right(self) -> bool:
        return self.category in true_categories(self.fault)

    @property
    def is_torchrun_wrong(self) -> bool:
        named, true = self.torchrun_rank, self.fault.initiating_rank
        return named is not None and true is not None and named != true


def true_categories(fault: Fault) -> tuple[str, ...]:
    """The fault's own first; a launcher watches progress, so of a hang that somebody ended it may say `hang`."""
    hang = (_HANG,) if fault.condition == _HANG else ()
    return (fault.category, *hang, *fault.accept)


def naming(outcome: Outcome) -> Naming | None:
    """Of a failed run, or of the attempt that a restart made good; null where there was no failure to explain."""
    folder, fault = outcome.folder, outcome.case.fault
    if (folder.path / "failure_report.json").exists():
        report = folder.failure()
    elif (folder.path / "final_summary.json").exists() and (history := folder.summary()["failure_history"]):
        report = history[0]
    else:
        return None
    return Naming(
        fault=fault,
        torchrun_rank=_torchrun_rank(outcome, report["initiating_rank"]),
        rank=report["initiating_rank"],
        category=report["category"],
        confidence=report["confidence"],
        is_torchrun_contradicted=report["torchrun"]["agrees"] is False,
        script=Path(report["source"]["file"]).name if report["source"] is not None else None,
    )


def complaints_of(found: Naming | None, case: Case) -> Iterator[str]:
    """What is wrong with it. A run that a person disturbed has no single truth; its table row shows what was said."""
    if found is None or case.is_disturbed:
        return
    if not found.is_rank_right:
        yield f"names rank {found.rank}, the truth is {found.fault.initiating_rank}"
    if not found.is_category_right:
        yield f"says {found.category}, the truth is {' or '.join(true_categories(found.fault))}"
    if found.category == "python_exception" and found.script != found.fault.script:
        yield f"shows a line of {found.script}, the exception was raised in {found.fault.script}"
    if found.is_torchrun_wrong and found.is_rank_right and not found.is_torchrun_contradicted:
        yield f"does not say that torchrun names rank {found.torchrun_rank}"


def render_naming(rows: Iterable[tuple[Case, Sequence[Naming]]]) -> str:
    """One row for each fault that ended a job, undisturbed; above them how often either was right."""
    crashes = [(case, found) for case, found in rows if found and not case.is_disturbed]
    every = [one for _, found in crashes for one in found]
    single = [one for one in every if one.fault.initiating_rank is not None]
    named = [one for one in single if one.torchrun_rank is not None]
    torchrun_right = sum(not one.is_torchrun_wrong for one in named)
    lines = [
        f"{len(every)} failed runs of {len(crashes)} faults. In {len(single)} of them one rank failed first: "
        f"torchrun's table names one in {len(named)}, the right one in {torchrun_right}; we name the right one in "
        f"{sum(one.is_rank_right for one in single)}.",
        f"Our category is right in {sum(one.is_category_right for one in every)} of {len(every)}.",
        "",
        "| fault | truth | runs | torchrun names | we name | our category | confidence |",
        "|---|---|---|---|---|---|---|",
        *(_row(case, found) for case, found in crashes),
    ]
    return "\n".join(lines) + "\n"


def _row(case: Case, found: Sequence[Naming]) -> str:
    true = "one rank" if case.fault.initiating_rank is not None else "no single rank"
    cells = (
        case.id,
        f"{true}, {case.fault.category}",
        str(len(found)),
        _tally(_rank_word(one, one.torchrun_rank) for one in found),
        _tally(_rank_word(one, one.rank) for one in found),
        _tally(one.category if not one.is_category_right else "right" for one in found),
        _tally(one.confidence for one in found),
    )
    return f"| {' | '.join(cells)} |"


def _rank_word(one: Naming, rank: int | None) -> str:
    if rank is None:
        return "nobody"
    if one.fault.initiating_rank is None:
        return "a rank"
    return "right" if rank == one.fault.initiating_rank else "wrong"


def _tally(words: Iterable[str]) -> str:
    counts = Counter(words)
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{word} {n}" for word, n in counts.most_common())


def _torchrun_rank(outcome: Outcome, named: int | None) -> int | None:
    """The torchrun of the named rank's node speaks, else the first that named one."""
    both = zip(outcome.launchers, outcome.reports, strict=True)
    own_first = sorted(both, key=lambda one: not _has_rank(one[1], named))
    answers = (_ROOT_CAUSE.search(launcher.stderr) for launcher, _ in own_first)
    found = next((answer for answer in answers if answer), None)
    return int(found[1]) if found else None


def _has_rank(report: dict[str, Any] | None, rank: int | None) -> bool:
    """A rendezvous hands out ranks as nodes come: the first launcher need not have the first ranks."""
    return report is not None and any(end["rank"] == rank for end in report["ranks"])
