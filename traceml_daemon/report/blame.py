"""Which attempt failed first, of those that ran at the same time, and of what. Pure.

The rules in their order; the first that applies decides.

1. An original error or death. All ranks alike: no rank is to blame. One that surely came first: that rank. A tie, on
   one host or inside the bound of the clocks: no rank, and no category unless they share it. A bare exit code ahead of
   the first step, of ranks that were stopped before they could say more: no rank, for the others may have been on their
   way out too (a wrong command line is wrong on all of them).
2. torchrun itself was killed by a signal; or it was told to end by one, or a launcher that does not own the run was,
   unless a peer was lost or timed out before its ranks were gone: schedulers end what is left of a job that has failed.
3. A collective timed out: the rank that alone waits for nobody did not arrive, or the one that waited in another call.
4. Peers were lost, and a rank had left well before: it ran out of work while they went on. Or a single rank is gone
   without a word: that rank, of unknown cause.
5. A signal that ends processes. The rank that died of it well before its peers lost it was not ended by torchrun;
   where no peer lost anybody, only torchrun's own table can say that one rank came first. One that died well after
   all others lost a peer, and never said so itself, is whom they lost.
6. A communication library failed. Only lost peers: the first failure is not among what was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from traceml_client.protocol.node import NodeReport
from traceml_daemon.diagnosis.wording import ranks_text
from traceml_daemon.report.form import Confidence, Evidence
from traceml_daemon.report.odd_call import odd_caller, stood_in_different_calls, ways_text
from traceml_daemon.report.symptom_text import shorten, signature, what, where, who
from traceml_daemon.report.symptoms import Symptom, first_of, of_signal, precedes
from traceml_daemon.triage.odd_replica import CATEGORY as REPLICAS_DIFFER
from traceml_daemon.triage.odd_replica import odd_replica
from traceml_daemon.triage.own_source import Source

_BETWEEN_RANKS: Final = frozenset({"rendezvous_failed", "network_fabric"})
"""Who notices it need not be at fault; in the middle of training one that waits alone for a key of the store is."""
_AGENT_POLL_NS: Final = 20_000_000
"""torchrun signals its ranks within microseconds of one another, and notices a death after up to 100 ms."""

_NOTICED_NS: Final = 1_000_000_000
"""A peer sees the connection of a dying process close, its launcher only that it is dead: long on a busy machine."""


@dataclass(frozen=True, slots=True)
class Blame:
    category: str
    confidence: Confidence
    headline: str
    """Who and what, without the consequences."""
    initiator: Symptom | None = None
    witness: Symptom | None = None
    """Whose words are the evidence, where the initiator left none."""
    node_index: int | None = None
    """Where a node is to blame and no rank."""
    evidence: tuple[Evidence, ...] = ()
    """Where no rank's own line is the evidence."""
    source: Source | None = None
    """Where nobody is to blame and all failed at the same line."""


def blame(
    symptoms: Sequence[Symptom], reports: Sequence[NodeReport], *, world_size: int, finished: Sequence[Symptom] = ()
) -> Blame:
    """Apply the rules to attempts that ran at the same time and ended badly; `finished`: those that ended well."""
    originals = [symptom for symptom in symptoms if symptom.kind == "original"]
    verdict = (
        _blame_original(originals, symptoms, world_size)
        or _blame_torchrun(reports)
        or _blame_cancelled_node(symptoms, reports)
        or _blame_absent(symptoms)
        or _blame_early_leaver(symptoms, finished)
        or _blame_vanished(symptoms)
        or _blame_ended(symptoms, reports)
        or _blame_closer(symptoms)
        or _blame_library(symptoms)
    )
    if verdict is not None:
        return verdict
    if symptoms:
        headline = "every error that was seen is the consequence of another one, which was not"
        return Blame("collateral_only", "unknown", headline)
    code = next((report.exit_code for report in reports if report.exit_code), None)
    headline = "no rank recorded an error" if code is None else f"torchrun exited with code {code}, no rank had failed"
    return Blame("insufficient_evidence", "unknown", headline)


def blame_interruption(signal: str | None) -> Blame:
    """The run was ended from outside before anything failed. `signal`: what the owner's launcher got."""
    if signal is None:
        return Blame("interrupted", "confirmed", "the daemon was told to stop while ranks were still at work")
    return Blame(of_signal(signal)[0], "confirmed", f"the launcher was interrupted by {signal}")


def _blame_original(originals: Sequence[Symptom], symptoms: Sequence[Symptom], world_size: int) -> Blame | None:
    if not originals:
        return None
    if all(symptom.category == REPLICAS_DIFFER for symptom in originals):
        odd = _odd_replica(originals, symptoms, world_size)
        if odd is not None:
            return odd
    if world_size > 1 and len(originals) == world_size and len({signature(s) for s in originals}) == 1:
        one = originals[0]
        return Blame(one.category, one.confidence, f"all {world_size} ranks {what(one)}", source=one.source)
    first = first_of(originals)
    if first is not None:
        return _blame_first(first, originals, symptoms)
    shared = {symptom.category for symptom in originals}
    who_failed = ranks_text(symptom.rank for symptom in originals)
    headline = f"{who_failed} failed, and nothing tells which of them did first"
    if len(shared) == 1:
        return Blame(shared.pop(), "likely", f"{headline}: {what(originals[0])}")
    return Blame("insufficient_evidence", "unknown", headline)


def _odd_replica(originals: Sequence[Symptom], symptoms: Sequence[Symptom], world_size: int) -> Blame | None:
    messages = [symptom.error.message for symptom in originals if symptom.error is not None]
    odd_rank = odd_replica(messages, world_size)
    odd = next((symptom for symptom in symptoms if symptom.rank == odd_rank), None)
    if odd is None:
        return None
    witness = odd if odd in originals else originals[0]
    headline = f"{who(odd)} has another model than the others; {who(witness)} {what(witness)}"
    return Blame(REPLICAS_DIFFER, "likely", headline, odd, witness=witness, source=witness.source)


def _blame_first(first: Symptom, originals: Sequence[Symptom], symptoms: Sequence[Symptom]) -> Blame:
    headline = f"{who(first)} {what(first)}"
    evidence = (first.reading.evidence,) if first.reading is not None else ()
    if first.category == "collective_mismatch":  # ranks did not do the same; who dies of it first need not be at fault
        return _of_mismatch(first, symptoms, evidence)
    waits_alone = first.category == "rendezvous_failed" and len(originals) == 1 and first.step
    if first.category in _BETWEEN_RANKS and not waits_alone:
        return Blame(first.category, first.confidence, headline, evidence=evidence)
    if _is_bare_start(first) and any(_was_stopped_at_start(other) for other in symptoms):
        headline += ", and the others were stopped before they got any further"
        return Blame(first.category, first.confidence, headline)
    is_first_of_many = len(originals) > 1 and first.confidence == "confirmed"
    return Blame(first.category, "likely" if is_first_of_many else first.confidence, headline, first)


def _of_mismatch(first: Symptom, symptoms: Sequence[Symptom], evidence: tuple[Evidence, ...]) -> Blame:
    """The odd one of their calls, if there is one."""
    ways, odd = ways_text(symptoms), odd_caller(symptoms)
    subject = "ranks ran different collectives or sizes"
    if odd is not None:
        subject = f"{who(odd)} ran another collective or size than the others"
    headline = f"{subject}: {ways}" if ways else f"{subject}; {who(first)} noticed it first"
    confidence = first.confidence if odd is None else "likely"
    return Blame(first.category, confidence, headline, odd, evidence=evidence)


def _is_bare_start(symptom: Symptom) -> bool:
    """It exited with a code before its first step, and left no word why."""
    return symptom.error is None and symptom.signal is None and symptom.reading is None and not symptom.step


def _was_stopped_at_start(symptom: Symptom) -> bool:
    return symptom.kind == "terminated" and symptom.error is None and not symptom.step


def _blame_torchrun(reports: Sequence[NodeReport]) -> Blame | None:
    for report in reports:
        if report.signal is not None and report.interrupted_by is None:
            headline = f"torchrun itself on node {report.node_index} was ended by {report.signal}"
            return Blame(*of_signal(report.signal), headline, node_index=report.node_index)
    return None


def _blame_cancelled_node(symptoms: Sequence[Symptom], reports: Sequence[NodeReport]) -> Blame | None:
    ended = [symptom for symptom in symptoms if symptom.kind == "terminated"]
    for report in reports:
        own = [symptom for symptom in ended if symptom.attempt.incarnation.node_index == report.node_index]
        signal = report.interrupted_by or report.torchrun_got
        known = [_was_ended_before(own, one) for one in symptoms if one not in ended]
        if signal is not None and own and False not in known:
            who_got_it = "the launcher of" if report.interrupted_by is not None else "torchrun on"
            headline = f"{who_got_it} node {report.node_index} was interrupted by {signal}"
            confidence: Confidence = "likely" if None in known else "confirmed"
            return Blame(of_signal(signal)[0], confidence, headline, node_index=report.node_index)
    return None


def _was_ended_before(own: Sequence[Symptom], other: Symptom) -> bool | None:
    """Whether one of these ends can be what the other suffered from; a time-out takes long, so a tie is none."""
    if any(precedes(end, other) for end in own):
        return True
    is_open = any(precedes(end, other, lead_ns=_NOTICED_NS) is None for end in own)
    return None if is_open and other.kind != "timeout" else False


def _blame_absent(symptoms: Sequence[Symptom]) -> Blame | None:
    waiting = [symptom for symptom in symptoms if symptom.kind == "timeout"]
    if not waiting:
        return None
    absent = [symptom for symptom in symptoms if symptom.kind in ("terminated", "vanished")]
    initiator = absent[0] if len(absent) == 1 else None
    headline = f"{ranks_text(s.rank for s in waiting)} waited in vain for a collective"
    if stood_in_different_calls(symptoms):
        odd = odd_caller(symptoms)
        subject = "ranks waited" if odd is None else f"{who(odd)} and the others waited"
        headline = f"{subject} for one another in different collectives: {ways_text(symptoms)}"
        return Blame("collective_mismatch", "likely", headline, odd)
    if initiator is not None:
        headline = f"{who(initiator)} did not arrive at a collective in time"
        headline += f"; it was{where(initiator)}" if initiator.step else ""
    return Blame("collective_timeout", "likely", headline, initiator, witness=waiting[0])


def _blame_early_leaver(symptoms: Sequence[Symptom], finished: Sequence[Symptom]) -> Blame | None:
    """One rank ended well and all others lost a peer: it had run out of work while they went on, or hid an error."""
    lost = [symptom for symptom in symptoms if symptom.kind == "peer_lost"]
    if not lost or len(finished) != 1 or any(s.kind not in ("peer_lost", "terminated") for s in symptoms):
        return None
    leaver = finished[0]
    if leaver.reading is not None and leaver.reading.kind == "original":  # caught, printed, and left
        headline = f"{who(leaver)} printed {shorten(leaver.reading.text)} and left with code 0 while the others waited"
        return Blame(leaver.reading.category, "likely", headline, leaver)
    headline = f"{who(leaver)} finished while the others still waited for it in a collective"
    return Blame("collective_mismatch", "likely", headline, leaver)


def _blame_library(symptoms: Sequence[Symptom]) -> Blame | None:
    failed = [symptom for symptom in symptoms if symptom.kind == "system"]
    if not failed:
        return None
    initiator = failed[0] if len(failed) == 1 else None
    return Blame(failed[0].category, "likely", f"{who(failed[0])} {what(failed[0])}", initiator)


def _blame_vanished(symptoms: Sequence[Symptom]) -> Blame | None:
    vanished = [symptom for symptom in symptoms if symptom.kind == "vanished"]
    others = [symptom for symptom in symptoms if symptom.kind == "peer_lost"]
    if len(vanished) != 1 or len(vanished) + len(others) != len(symptoms):
        return None
    headline = f"{who(vanished[0])} was gone without an error, exit code or signal that anybody saw"
    return Blame("insufficient_evidence", "unknown", headline, vanished[0])


def _blame_ended(symptoms: Sequence[Symptom], reports: Sequence[NodeReport]) -> Blame | None:
    ended = [symptom for symptom in symptoms if symptom.kind == "terminated"]
    if not ended:
        return None
    named = {rank for report in reports if (rank := report.torchrun_root_cause_rank) is not None}
    candidates = ended if len(ended) < len(symptoms) else [symptom for symptom in ended if symptom.rank in named]
    first = next((symptom for symptom in candidates if _was_first_of_its_node(symptom, reports)), None)
    if first is None and len(ended) < len(symptoms):
        first = first_of([s for s in symptoms if s.kind in ("terminated", "peer_lost")], lead_ns=_AGENT_POLL_NS)
    if first is not None and first in ended and len(symptoms) > 1 and not first.is_by_launcher:
        return Blame(first.category, first.confidence, f"{who(first)} {what(first)}", first)
    if len(ended) < len(symptoms):
        return None
    one = next((symptom for symptom in ended if symptom.category != "sigterm_unattributed"), ended[0])
    headline = f"{ranks_text(symptom.rank for symptom in ended)} were ended together from outside"
    return Blame(one.category, "likely", headline)


def _blame_closer(symptoms: Sequence[Symptom]) -> Blame | None:
    """All others lost a peer while this one was alive and said nothing: it left the group and was ended on its way out.

    So does a `finally` that destroys the process group and then takes its time; what was raised is not printed by then.
    """
    silent = [symptom for symptom in symptoms if symptom.kind == "terminated" and symptom.error is None]
    lost = [symptom for symptom in symptoms if symptom.kind == "peer_lost" and symptom.error is not None]
    if len(silent) != 1 or not lost or len(lost) + 1 < len(symptoms) or silent[0].is_by_launcher:
        return None
    if not all(precedes(one, silent[0], lead_ns=_AGENT_POLL_NS) for one in lost):
        return None
    headline = (
        f"{who(silent[0])} left the process group while the others waited for it, and was ended before it said why"
    )
    return Blame("insufficient_evidence", "unknown", headline, silent[0])


def _was_first_of_its_node(symptom: Symptom, reports: Sequence[NodeReport]) -> bool:
    """Whether torchrun saw a rank fail, and no other of this one's node died before: it was not ended for another one.

    torchrun prints no table when it was signalled itself: all its ranks die then, up to 100 ms apart. Whom the table
    names is no proof: it has whole seconds.
    """
    incarnation, place = symptom.attempt.incarnation, symptom.attempt.place
    for report in reports:
        is_own = report.node_index == incarnation.node_index and report.torchrun_root_cause_rank is not None
        if is_own and symptom.at_ns is not None:
            together = [end for end in report.ranks if end.torch_restart_count == place.torch_restart_count]
            return all(end.died_ns is None or end.died_ns >= symptom.at_ns for end in together)
    return False
