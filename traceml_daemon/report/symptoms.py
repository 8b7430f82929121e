"""What befell each attempt of a rank, and which of two came first.

A symptom's class says how near it is to a cause: an original error or death beats a time-out of a collective, that
beats a lost peer, that beats a signal which torchrun or the launcher sends to those who are left. Within a class the
time decides: of the raise where there was one, not of the reaping.

A category is a cause, never a wrapper; where a sign fits several causes, the category says so (`sigkill_unattributed`).
What an exception says is read by the triage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from traceml_client.protocol.node import RankEnd, RankError
from traceml_daemon.core.events import Incarnation
from traceml_daemon.report.facts import AttemptFacts
from traceml_daemon.report.form import Confidence
from traceml_daemon.report.readings import Reading, Readings, of_error
from traceml_daemon.triage.own_source import Source

_BY_SIGNAL: Final[dict[str, tuple[str, Confidence]]] = {
    "SIGKILL": ("sigkill_unattributed", "unknown"),
    "SIGSEGV": ("segfault", "confirmed"),
    "SIGABRT": ("abort", "confirmed"),
    "SIGBUS": ("bus_error_shm", "likely"),
    "SIGILL": ("illegal_instruction", "confirmed"),
    "SIGFPE": ("illegal_instruction", "confirmed"),
    "SIGTERM": ("sigterm_unattributed", "unknown"),
    "SIGHUP": ("hangup", "likely"),
    "SIGINT": ("interrupted", "likely"),
    "SIGQUIT": ("interrupted", "likely"),
}


def short_type(error: RankError) -> str:
    """`torch.distributed.DistBackendError` is DistBackendError to people."""
    return error.type.rpartition(".")[2]


def of_signal(signal: str) -> tuple[str, Confidence]:
    """The category of a death by a signal; one of an unknown signal says only that."""
    return _BY_SIGNAL.get(signal, ("insufficient_evidence", "unknown"))


Kind = Literal["original", "system", "timeout", "peer_lost", "terminated", "vanished", "finished"]

_SAME_INSTANT_NS: Final = 1_000_000
"""On one host: two raises this near to one another did not cause one another."""
_AGENT_GRACE_NS: Final = 20_000_000_000
"""torchrun gives a rank 30 s after SIGTERM; a SIGKILL this long after a first death is taken for its own."""
_QUEUED_STEPS: Final = 16
"""So long a rank can go on after a thread that read ahead has failed; where another rank failed, going on tells."""
_EXIT_TYPE: Final = "SystemExit"
_VAGUE_TYPES: Final = frozenset({"RuntimeError", "OSError", "Exception", "ConnectionResetError", "EOFError"})
"""Types that torch and Python raise for many causes."""
_OF_CHILDREN: Final = frozenset(
    {"CalledProcessError", "ProcessRaisedException", "ProcessExitedException", "BrokenProcessPool"}
)
"""Exceptions that tell of another process, which printed its own."""
_ENDING_SIGNALS: Final = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})
_ENDING_CODES: Final = frozenset({129, 130, 131, 143})
"""Of a rank that turns such a signal into an exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """How one attempt ended, if not well."""

    attempt: AttemptFacts
    kind: Kind
    category: str
    confidence: Confidence
    at_ns: int | None
    """Wall clock of its own host; null where nobody knows."""
    error: RankError | None = None
    left_by: RankError | None = None
    """The SystemExit behind its exit code, with the line that called `sys.exit`."""
    exit_code: int | None = None
    signal: str | None = None
    step: int | None = None
    phase: str | None = None
    is_by_launcher: bool = False
    reading: Reading | None = None
    """What its own stream says."""

    @property
    def rank(self) -> int:
        return self.attempt.place.rank

    @property
    def is_handled(self) -> bool:
        return self.error is not None and self.error.kind == "handled"

    @property
    def source(self) -> Source | None:
        """The line of the user's own code at which it failed, or waited."""
        known = self.error or self.left_by
        recorded = of_error(known).source if known is not None else None
        return recorded or (self.reading.source if self.reading is not None else None)


def find_symptoms(
    attempts: Iterable[AttemptFacts], ends: dict[Incarnation, RankEnd], readings: Readings
) -> tuple[Symptom, ...]:
    """The symptoms of attempts that ran at the same time; those that ended well have none."""
    told = tuple(attempts)
    found = _of_all(told, ends, readings, max_steps_on=_QUEUED_STEPS)
    if any(symptom.kind == "original" and (symptom.error is None or symptom.error.kind == "main") for symptom in found):
        found = _of_all(told, ends, readings, max_steps_on=0)
    is_certain = any(symptom.kind == "original" and not symptom.is_handled for symptom in found)
    if is_certain or not any(symptom.kind in ("peer_lost", "timeout") for symptom in found):
        found = [_without_handled(symptom) for symptom in found]
    return tuple(_attribute_to_agent(symptom, found) for symptom in found)


def _of_all(
    attempts: Iterable[AttemptFacts], ends: dict[Incarnation, RankEnd], readings: Readings, *, max_steps_on: int
) -> list[Symptom]:
    found = []
    for attempt in attempts:
        symptom = _symptom(attempt, ends.get(attempt.incarnation), max_steps_on=max_steps_on)
        if symptom is not None:
            found.append(_with_reading(symptom, readings.get(attempt.incarnation)))
    return found


def find_finished(
    attempts: Iterable[AttemptFacts], ends: dict[Incarnation, RankEnd], readings: Readings
) -> tuple[Symptom, ...]:
    """The attempts that ended well, with the time of their end and what they printed all the same."""
    found = []
    for attempt in attempts:
        end = ends.get(attempt.incarnation)
        if end is not None and end.exit_code == 0 and end.signal is None and _symptom(attempt, end) is None:
            reading = readings.get(attempt.incarnation)
            found.append(replace(_blank(attempt, end), kind="finished", exit_code=0, reading=reading))
    return tuple(found)


def precedes(first: Symptom, second: Symptom, *, lead_ns: int = _SAME_INSTANT_NS) -> bool | None:
    """Whether `first` came before `second`; null inside the lead and the error bound of the clocks: a tie."""
    if first.at_ns is None or second.at_ns is None:
        return None
    difference_ns = second.at_ns - first.at_ns
    bound_ns = lead_ns
    one, other = first.attempt, second.attempt
    if one.place.host != other.place.host:
        if min(one.clock_bound_ns, other.clock_bound_ns) < 0:
            return None
        difference_ns += other.clock_offset_ns - one.clock_offset_ns
        bound_ns += one.clock_bound_ns + other.clock_bound_ns
    return None if abs(difference_ns) <= bound_ns else difference_ns > 0


def first_of(symptoms: Iterable[Symptom], *, lead_ns: int = _SAME_INSTANT_NS) -> Symptom | None:
    """The one that surely preceded all others; null on a tie, and if there is none."""
    everyone = tuple(symptoms)
    for one in everyone:
        if all(other is one or precedes(one, other, lead_ns=lead_ns) for other in everyone):
            return one
    return None


def _symptom(attempt: AttemptFacts, end: RankEnd | None, *, max_steps_on: int = 0) -> Symptom | None:
    exit_code = end.exit_code if end is not None and end.exit_code is not None else attempt.exit_code
    signal = end.signal if end is not None else None
    error = _first_error(attempt, end, max_steps_on)
    if error is not None and error.type == _EXIT_TYPE:
        return _of_exit(attempt, end, error, exit_code=exit_code or attempt.exit_code)
    if error is not None and (error.kind != "thread" or exit_code != 0):
        return _of_error(attempt, error, exit_code=exit_code, signal=signal)
    common = replace(_blank(attempt, end), exit_code=exit_code, signal=signal)
    if signal is not None:
        category, confidence = of_signal(signal)
        is_ending = signal in _ENDING_SIGNALS or common.is_by_launcher
        return replace(common, kind="terminated" if is_ending else "original", category=category, confidence=confidence)
    if exit_code in _ENDING_CODES:
        return replace(common, kind="terminated", category="sigterm_unattributed")
    if exit_code:
        return replace(common, kind="original", category="nonzero_exit", confidence="likely")
    return None if attempt.state == "finished" or exit_code == 0 else common


def _without_handled(symptom: Symptom) -> Symptom:
    """Where another rank failed for certain, or none missed this one, it may have handled it well: a loader's end."""
    if not symptom.is_handled:
        return symptom
    return replace(symptom, kind="terminated", category="sigterm_unattributed", confidence="unknown", error=None)


def _is_reason(error: RankError, end: RankEnd | None, max_steps_on: int) -> bool:
    """What it was handling when a signal to end came is why it had left the others, unless it trained on meanwhile.

    So is what a thread failed of, up to `max_steps_on` steps before.
    """
    if error.kind == "thread":
        return end is None or end.step - error.step <= max_steps_on
    is_sudden = end is not None and end.signal in _ENDING_SIGNALS and not end.is_marker_sent
    return error.kind != "handled" or (is_sudden and end is not None and end.step == error.step)


def _of_exit(attempt: AttemptFacts, end: RankEnd | None, error: RankError, *, exit_code: int | None) -> Symptom:
    """It left by `sys.exit`; a signal may have caught it on its way out, which is no reason."""
    left = replace(_blank(attempt, end), exit_code=exit_code, left_by=error, at_ns=error.raised_ns)
    if exit_code in _ENDING_CODES:
        return replace(left, kind="terminated", category="sigterm_unattributed")
    return replace(left, kind="original", category="nonzero_exit", confidence="likely", step=error.step or None)


def _blank(attempt: AttemptFacts, end: RankEnd | None) -> Symptom:
    """Nothing is known but that it is gone."""
    return Symptom(
        attempt=attempt,
        kind="vanished",
        category="insufficient_evidence",
        confidence="unknown",
        at_ns=end.died_ns if end is not None else _last_sign_ns(attempt),
        step=end.step or None if end is not None else None,
        phase=end.phase if end is not None else None,
        is_by_launcher=end is not None and end.stopped_by_launcher is not None,
    )


def _last_sign_ns(attempt: AttemptFacts) -> int | None:
    """Without a launcher: when the daemon last heard of it, on its own host's clock."""
    return None if attempt.last_at_ns is None else attempt.last_at_ns - attempt.clock_offset_ns


def _of_error(attempt: AttemptFacts, error: RankError, *, exit_code: int | None, signal: str | None) -> Symptom:
    said = of_error(error)
    is_vague = said.cause.category == "python_exception" and short_type(error) in _VAGUE_TYPES
    is_vague = is_vague or error.kind == "handled"
    return Symptom(
        attempt=attempt,
        kind=said.kind,
        category="collateral_only" if said.kind == "peer_lost" else said.cause.category,
        confidence="confirmed" if said.cause.is_stated and not is_vague else "likely",
        at_ns=error.raised_ns,
        error=error,
        exit_code=exit_code,
        signal=signal,
        step=error.step or None,
        phase=error.phase,
    )


def _with_reading(symptom: Symptom, reading: Reading | None) -> Symptom:
    """Join what was recorded of an end with what the rank printed.

    A recorded raise keeps its kind and time; the text may say of what it was, but another exception in it was got over,
    unless a child of the rank raised that. An exit or a signal tells little, so there the text decides, unless the
    signal is a crash that the text does not explain; before a `sys.exit` too, something may have been got over.
    """
    if reading is None:
        return symptom
    read = replace(symptom, reading=reading)
    if symptom.error is not None:
        is_plain = symptom.kind == "original" and symptom.category == "python_exception"
        is_told = reading.kind == "original" and reading.category != "python_exception"
        if is_plain and is_told and (not reading.is_raised or short_type(symptom.error) in _OF_CHILDREN):
            return replace(read, category=reading.category, confidence="likely")
        return read
    is_crash = symptom.kind == "original" and symptom.signal is not None
    if is_crash and (symptom.category != "abort" or reading.category == "python_exception"):
        return read
    if symptom.category == "nonzero_exit" and reading.category == "hang":  # its own watchdog dumped stacks and left
        return replace(read, category="hang")
    if symptom.signal == "SIGKILL" or reading.kind == "terminated":
        return read
    category = "collateral_only" if reading.kind == "peer_lost" else reading.category
    at_ns = None if symptom.kind == "terminated" and reading.kind == "original" else symptom.at_ns
    confidence: Confidence = "likely" if symptom.left_by is not None else reading.confidence
    return replace(read, kind=reading.kind, category=category, confidence=confidence, at_ns=at_ns)


def _first_error(attempt: AttemptFacts, end: RankEnd | None, max_steps_on: int) -> RankError | None:
    """Of main and thread error the earlier one, whoever brought the news."""
    known = [attempt.error, attempt.thread_error]
    known += [end.error, end.thread_error] if end is not None else []
    errors = (error for error in known if error is not None and _is_reason(error, end, max_steps_on))
    return min(errors, key=lambda error: error.raised_ns, default=None)


def _attribute_to_agent(symptom: Symptom, everyone: list[Symptom]) -> Symptom:
    """A SIGKILL long after a first death on the same node is torchrun's, to a rank that ignored its SIGTERM."""
    if symptom.signal != "SIGKILL" or symptom.error is not None or symptom.at_ns is None:
        return symptom
    node_index = symptom.attempt.incarnation.node_index
    neighbours = [other.at_ns for other in everyone if other.attempt.incarnation.node_index == node_index]
    first_ns = min(at_ns for at_ns in neighbours if at_ns is not None)
    return replace(symptom, kind="terminated") if symptom.at_ns - first_ns >= _AGENT_GRACE_NS else symptom
