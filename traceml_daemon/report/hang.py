"""Whether a run that was ended from outside had hung before, and which rank the others waited for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from traceml_daemon.core.events import Incarnation
from traceml_daemon.report.blame import Blame, who
from traceml_daemon.report.progress import Progress
from traceml_daemon.report.symptoms import Symptom

_MIN_STALL_NS: Final = 1_500_000_000
_STALL_STEPS: Final = 20
"""A rank that made no step for so many times its usual one had stopped, not slowed down."""
_WAITING_PHASE: Final = "backward"
"""Where a rank waits for the others' gradients."""


def blame_hang(symptoms: Sequence[Symptom], progress: Mapping[Incarnation, Progress], stopped_ns: int) -> Blame | None:
    """The rank that alone was not where ranks wait for one another, all of them without a step for long.

    `stopped_ns`: when somebody ended the run, wall clock of the daemon's host.
    """
    seen = [progress.get(symptom.attempt.incarnation) for symptom in symptoms]
    known = [one for one in seen if one is not None]
    if len(symptoms) < 2 or len(known) < len(symptoms):
        return None
    still_ns = stopped_ns - max(one.last_step_ns for one in known)
    if still_ns < max(_MIN_STALL_NS, _STALL_STEPS * max(one.typical_step_ns for one in known)):
        return None
    last_step = max(symptom.step or 0 for symptom in symptoms)
    absent = [s for s in symptoms if s.phase != _WAITING_PHASE or (s.step or 0) < last_step]
    if len(absent) != 1:
        return None
    one = absent[0]
    where = f" ({one.phase})" if one.phase not in (None, "residual") else ""
    headline = (
        f"{who(one)} stood still in step {one.step}{where} for {still_ns / 1e9:.1f} s while the others waited for it,"
        " until the run was ended from outside"
    )
    return Blame(category="hang", confidence="likely", initiator=one, headline=headline)
