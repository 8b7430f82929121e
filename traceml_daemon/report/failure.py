"""`failure_report.json`: who failed first and of what, from raise times, exits, signals and what the ranks printed.

Then the line of a file that it rests on, so that a reader can look for himself. Files may be huge, binary or gone: they
are read in pieces up to a bound, and no evidence is better than a wrong line.

What a restart recovered is diagnosed the same way, from the attempts that ended with it, and goes to the history.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from traceml_client.protocol.launch import NODE_FILE, TRAINING_STDERR_FILE, layout_node_dir, layout_rank_dir
from traceml_client.protocol.manifest import NodeOutcome
from traceml_client.protocol.node import NodeReport
from traceml_daemon.log_files.catalog import advice
from traceml_daemon.report.blame import Blame, blame, blame_interruption
from traceml_daemon.report.facts import AttemptFacts, RunFacts, by_rank, ends_of, last_attempts
from traceml_daemon.report.form import Collateral, Evidence, FailureReport, TorchrunView
from traceml_daemon.report.hang import blame_hang, read_progress
from traceml_daemon.report.readings import read_attempts, read_run
from traceml_daemon.report.symptoms import Symptom, find_finished, find_symptoms, short_type

STDERR_FILE: Final = "stderr.log"
_STOPS: Final = frozenset({"sigterm_unattributed", "interrupted", "hangup", "preempted_or_cancelled"})
_TOLD_BY_OTHERS: Final = frozenset({"collective_timeout", "collective_mismatch", "hang"})
"""The rank to blame did not fail: what there is to read stands in the streams of those that waited for it."""
_CRASHES: Final = frozenset({"segfault", "abort", "bus_error_shm", "illegal_instruction"})


class Diagnosis(NamedTuple):
    """A report and what it rests on."""

    report: FailureReport
    witness: Symptom | None
    """Whose words are the evidence."""


def diagnose(facts: RunFacts, run_dir: Path = Path()) -> Diagnosis | None:
    """The diagnosis of a failed or interrupted run, from the last attempt of each rank; null for any other run.

    `run_dir` is only named, in commands that a person can paste.
    """
    if facts.status not in ("failed", "interrupted"):
        return None
    attempts = last_attempts(facts.attempts)
    readings = read_attempts(run_dir, attempts.values())
    ends = ends_of(facts.node_reports)
    symptoms = find_symptoms(attempts.values(), ends, readings)
    if facts.status == "interrupted":
        verdict = _blame_interrupted(facts, symptoms)
        verdict = _with_hang(verdict, symptoms, facts, run_dir)
    else:
        finished = find_finished(attempts.values(), ends, readings)
        verdict = blame(symptoms, facts.node_reports, world_size=facts.topology.world_size, finished=finished)
        verdict = _with_hang(verdict, symptoms, facts, run_dir)
        verdict = _with_torchruns_words(verdict, facts, run_dir)
        verdict = _with_lost_nodes(verdict, facts.nodes)
    return Diagnosis(_report(verdict, symptoms, facts, run_dir), verdict.witness or verdict.initiator)


def diagnose_history(facts: RunFacts, run_dir: Path = Path()) -> tuple[FailureReport, ...]:
    """The diagnoses of earlier attempts, the oldest first: what made torchrun start its workers anew."""
    last = {attempt.incarnation for attempt in last_attempts(facts.attempts).values()}
    generations: dict[int, list[AttemptFacts]] = defaultdict(list)
    for attempt in facts.attempts:
        if attempt.incarnation not in last:
            generations[attempt.place.torch_restart_count].append(attempt)
    reports = []
    for _, attempts in sorted(generations.items()):
        symptoms = find_symptoms(attempts, ends_of(facts.node_reports), read_attempts(run_dir, attempts))
        if symptoms:
            verdict = blame(symptoms, (), world_size=attempts[0].place.world_size)
            reports.append(_report(verdict, symptoms, facts, run_dir))
    return tuple(reports)


def _with_hang(verdict: Blame, symptoms: Sequence[Symptom], facts: RunFacts, run_dir: Path) -> Blame:
    """Where somebody only ended the run, it may have hung before."""
    ended = [s.at_ns + s.attempt.clock_offset_ns for s in symptoms if s.at_ns is not None]
    stopped_ns = facts.interrupted_ns or min(ended, default=None)
    if verdict.initiator is not None or verdict.category not in _STOPS or stopped_ns is None:
        return verdict
    return blame_hang(symptoms, read_progress(run_dir), stopped_ns) or verdict


def _with_torchruns_words(verdict: Blame, facts: RunFacts, run_dir: Path) -> Blame:
    """Where no rank's end tells the cause, torchrun's own streams may: a port, a meeting, its own error."""
    if verdict.initiator is not None or verdict.category not in ("collateral_only", "insufficient_evidence"):
        return verdict
    read = read_run(run_dir, sorted({report.node_index for report in facts.node_reports}))
    return verdict if read is None else Blame(*read[:3], evidence=read.evidence)


def _with_lost_nodes(verdict: Blame, nodes: Iterable[NodeOutcome]) -> Blame:
    """Where no failure explains the others, a node that said nothing is the place to look at."""
    silent = [node for node in nodes if node.why is not None]
    if not silent or verdict.category not in ("collateral_only", "insufficient_evidence") or verdict.initiator:
        return verdict
    headline = "; ".join([*(str(node.why) for node in silent), verdict.headline])
    return replace(verdict, headline=headline, node_index=silent[0].node_rank if len(silent) == 1 else None)


def _blame_interrupted(facts: RunFacts, symptoms: Sequence[Symptom]) -> Blame:
    """Something may have failed before somebody ended the run; what befell ranks afterwards is a consequence."""
    earlier = [symptom for symptom in symptoms if symptom.kind == "original" and _is_before_signal(symptom, facts)]
    if earlier:
        return blame(earlier, (), world_size=facts.topology.world_size)
    signals = (report.interrupted_by for report in facts.node_reports)
    return blame_interruption(next((signal for signal in signals if signal is not None), None))


def _is_before_signal(symptom: Symptom, facts: RunFacts) -> bool:
    """By the clock; where the time of the signal is not known, an exit may be its answer, a crash is not."""
    if symptom.is_handled:
        return False
    if facts.interrupted_ns is None or symptom.at_ns is None:
        return symptom.error is not None or symptom.category in _CRASHES
    return symptom.at_ns + symptom.attempt.clock_offset_ns < facts.interrupted_ns


def _report(verdict: Blame, symptoms: Sequence[Symptom], facts: RunFacts, run_dir: Path) -> FailureReport:
    initiator = verdict.initiator
    file = stderr_of(initiator.attempt if initiator is not None else None, verdict.node_index)
    if verdict.category in _TOLD_BY_OTHERS:
        file = stderr_of(None, initiator.attempt.incarnation.node_index if initiator is not None else None)
    stderr, run, logs = (shlex.quote(str(path)) for path in (run_dir / file, run_dir, run_dir.parent))
    next_run = f"traceml status --logs-dir {logs}"
    return FailureReport(
        **advice(verdict.category, verdict.confidence, stderr=stderr, run=run, next_run=next_run),
        initiating_rank=initiator.rank if initiator is not None else None,
        node_rank=initiator.attempt.incarnation.node_index if initiator is not None else verdict.node_index,
        attempt=by_rank(facts.attempts)[initiator.rank].index(initiator.attempt) if initiator is not None else None,
        step=initiator.step if initiator is not None else None,
        phase=initiator.phase if initiator is not None else None,
        exit_code=initiator.exit_code if initiator is not None else facts.exit_code,
        signal=initiator.signal if initiator is not None else facts.signal,
        summary=verdict.headline,
        evidence=verdict.evidence,
        collateral=_collateral(symptoms, initiator),
        torchrun=_torchrun_view(facts.node_reports, verdict),
        source=initiator.source if initiator is not None else verdict.source,
    )


def _collateral(symptoms: Iterable[Symptom], initiator: Symptom | None) -> tuple[Collateral, ...]:
    others = sorted((s for s in symptoms if s is not initiator), key=lambda symptom: symptom.rank)
    reasons = ((symptom.rank, _reason(symptom)) for symptom in others)
    return tuple(Collateral(rank, reason) for rank, reason in reasons if reason is not None)


def _reason(symptom: Symptom) -> str | None:
    """Why a rank that is not to blame ended; null for a failure of its own, and where nobody knows."""
    if symptom.kind == "peer_lost":
        return "peer_lost"
    if symptom.kind == "timeout":
        return "collective_timeout"
    if symptom.kind == "terminated":
        return "sigkill_by_agent" if symptom.signal == "SIGKILL" else "sigterm_by_agent"
    return "aborted_by_watchdog" if symptom.signal == "SIGABRT" and symptom.error is None else None


def _torchrun_view(reports: Sequence[NodeReport], verdict: Blame) -> TorchrunView:
    """torchrun of the initiator's node speaks; where nobody is to blame, the first that named a rank."""
    initiator = verdict.initiator
    own = [r for r in reports if initiator is not None and r.node_index == initiator.attempt.incarnation.node_index]
    named = [r.torchrun_root_cause_rank for r in (*own, *reports) if r.torchrun_root_cause_rank is not None]
    if not named:
        return TorchrunView(None, None, "torchrun named no rank")
    if initiator is None:
        return TorchrunView(named[0], None, "torchrun names the rank whose process it saw end first")
    if named[0] == initiator.rank:
        return TorchrunView(named[0], True, None)
    truth = f"rank {initiator.rank} {'raised' if initiator.error is not None else 'ended'} earlier"
    if verdict.category in _TOLD_BY_OTHERS:
        truth = f"it waited for rank {initiator.rank}"
    return TorchrunView(named[0], False, f"torchrun names the rank whose process it saw end first; {truth}")


def stderr_of(attempt: AttemptFacts | None, node_index: int | None = None) -> str:
    """The stream to read, relative to the run folder: the rank's own, else that of the whole node."""
    if attempt is None:
        return f"{layout_node_dir(node_index or 0)}/{TRAINING_STDERR_FILE}"
    incarnation = attempt.incarnation
    return f"{layout_rank_dir(incarnation.node_index, attempt.place.rank, incarnation.attempt)}/{STDERR_FILE}"


_MAX_FILE_BYTES: Final = 64 << 20
"""0.1 s of reading; the launcher keeps streams without a cap, but what is said last is at their end."""
_MAX_TEXT: Final = 500


def with_evidence(diagnosis: Diagnosis, run_dir: Path) -> FailureReport:
    """The report, with the line that its cause can be read from, if there is one."""
    report, witness = diagnosis
    if witness is None or report.evidence:
        return report
    read = witness.reading.evidence if witness.reading is not None else None
    found = _error_line(witness, run_dir) or (read if witness.signal is None else None)
    exit_line = _exit_line(witness, run_dir)
    chosen = tuple(one for one in (found or exit_line, read if found is None else None) if one is not None)
    return msgspec.structs.replace(report, evidence=chosen)


def _error_line(initiator: Symptom, run_dir: Path) -> Evidence | None:
    """The last line of the traceback in the rank's own stream, behind a module's name or `[rank1]:` as it may be."""
    error = initiator.error
    if error is None:
        return None
    first_line = error.message.partition("\n")[0]
    name = short_type(error)
    return _last_line(run_dir, stderr_of(initiator.attempt), f"{name}: {first_line}" if first_line else name)


def _exit_line(initiator: Symptom, run_dir: Path) -> Evidence | None:
    """The rank's exit code or signal in its node's report."""
    file = f"{layout_node_dir(initiator.attempt.incarnation.node_index)}/{NODE_FILE}"
    name, value = ("signal", f'"{initiator.signal}"') if initiator.signal else ("exit_code", str(initiator.exit_code))
    is_own = False
    for number, line in enumerate(_lines(run_dir / file), 1):
        text = line.decode(errors="replace").strip()
        if text.startswith('"pid":'):
            is_own = text.rstrip(",") == f'"pid": {initiator.attempt.place.pid}'
        elif is_own and text.rstrip(",") == f'"{name}": {value}':
            return Evidence(file, number, text)
    return None


def _last_line(run_dir: Path, file: str, needle: str) -> Evidence | None:
    """The last line that holds `needle`: an error that ends a process is the last of its kind."""
    wanted, found = needle.encode(errors="surrogatepass"), None
    for number, line in enumerate(_lines(run_dir / file), 1):
        if wanted in line:
            found = number, line
    if found is None:
        return None
    text = found[1].decode(errors="replace").strip("\r\n")
    return Evidence(file, found[0], text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT])


def _lines(path: Path) -> Iterator[bytes]:
    """Lines end at a newline only. None where the file is not there, or too large to be read now."""
    try:
        if path.stat().st_size <= _MAX_FILE_BYTES:
            with path.open("rb") as file:
                yield from file
    except OSError:
        return
