"""Of ranks that ran different collectives, or one with different sizes, the odd one: by majority. Pure.

Every rank that raised recorded its call. One that gloo aborted did not: it got more than it expected, so its own size
is one of the smaller ones. One that torchrun stopped early did not either: but whoever sent a message had a tensor at
least as large.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from traceml_daemon.diagnosis.wording import ranks_text
from traceml_daemon.report.readings import of_error
from traceml_daemon.report.symptoms import Symptom

Call = tuple[str, int | None]
"""Name and bytes; from a traceback alone the size is not known."""

_MIN_RANKS: Final = 3
"""Of two ranks that differ neither is the odd one."""
_RECEIVED: Final = re.compile(r"preamble\.length <= op\.nbytes\D* (\d+) vs (\d+)")
_MAX_ELEMENT_BYTES: Final = 16
_SAME_CASCADE_NS: Final = 100_000_000
"""A rank that gives up closes its connections: those that stood in another call at that time fail with it."""


def odd_caller(symptoms: Sequence[Symptom]) -> Symptom | None:
    """The one whose call differs from what all the others called; null where there is no such majority."""
    groups, silent = _groups(symptoms)
    aborted = [symptom for symptom in silent if symptom.signal == "SIGABRT"]
    if len(symptoms) < _MIN_RANKS or len(aborted) > 1:
        return None
    by_name = {name: [s for s in symptoms if _name(s) == name] for name in map(_name, symptoms)}
    if len(by_name) > 1 and None not in by_name:
        return _single(by_name.values())
    if len(silent) > len(aborted):
        return _only_possible_sender(symptoms, aborted)
    if aborted and any(num_bytes is None for _, num_bytes in groups):
        return None
    if aborted and len(groups) == 1:
        return aborted[0]
    if len(groups) != 2:
        return None
    small = min(groups, key=lambda call: call[1] or 0)
    groups[small] += aborted
    return _single(groups.values())


def _single(groups: Collection[list[Symptom]]) -> Symptom | None:
    """Of two groups, the one that stands alone against several."""
    few, *many = sorted(groups, key=len)
    return few[0] if len(many) == 1 and len(few) == 1 < len(many[0]) else None


def _only_possible_sender(symptoms: Sequence[Symptom], aborted: Sequence[Symptom]) -> Symptom | None:
    """The only rank of which it is not known that its tensor was smaller than the message that came."""
    words = [one.reading.text for one in aborted if one.reading is not None]
    message = next((found for text in words if (found := _RECEIVED.search(text))), None)
    if message is None:
        return None
    received, expected = int(message[1]), int(message[2])
    known = {s.rank: s.error.collective_bytes for s in symptoms if s.error is not None and s.error.collective}
    can_be = [s for s in symptoms if s not in aborted and (known.get(s.rank) or received) >= received]
    can_be = [s for s in can_be if not _is_as_expected(known.get(s.rank), expected, len(symptoms))]
    return can_be[0] if len(can_be) == 1 else None


def _is_as_expected(num_bytes: int | None, expected: int, num_ranks: int) -> bool:
    """Whether a tensor has the size of the aborted rank's: whole, or in gloo's ring, which sends it in 2 N pieces."""
    if num_bytes is None:
        return False
    pieces = 2 * num_ranks
    return num_bytes == expected or 0 <= expected * pieces - num_bytes < pieces * _MAX_ELEMENT_BYTES


def ways_text(symptoms: Sequence[Symptom]) -> str:
    """`ranks 0, 1 in all_reduce(float32[40]), rank 2 in broadcast(float32[40])`; empty if fewer than two are known."""
    by_text: dict[str, list[int]] = defaultdict(list)
    for symptom in symptoms:
        if (text := _text(symptom)) is not None:
            by_text[text].append(symptom.rank)
    return ", ".join(f"{ranks_text(by_text[text])} in {text}" for text in sorted(by_text)) if len(by_text) > 1 else ""


def stood_in_different_calls(symptoms: Sequence[Symptom]) -> bool:
    """Whether all of them waited out their time, or lost a peer together with those, in calls that are not the same.

    A rank that came late fails later: it was in an earlier call by right.
    """
    groups, silent = _groups(symptoms)
    raised_ns = [symptom.error.raised_ns for symptom in symptoms if symptom.error is not None]
    is_together = not raised_ns or max(raised_ns) - min(raised_ns) <= _SAME_CASCADE_NS
    is_all = all(symptom.kind in ("timeout", "peer_lost") for symptom in symptoms)
    is_together = is_together or all(symptom.kind == "timeout" for symptom in symptoms)
    return is_all and is_together and not silent and len(groups) > 1


def _groups(symptoms: Sequence[Symptom]) -> tuple[dict[Call, list[Symptom]], list[Symptom]]:
    """Ranks by their call, and those that recorded none."""
    groups: dict[Call, list[Symptom]] = defaultdict(list)
    silent = []
    for symptom in symptoms:
        call = _call(symptom)
        if call is None or symptom.signal == "SIGABRT":  # of which at most the name is known
            silent.append(symptom)
        else:
            groups[call].append(symptom)
    return groups, silent


def _call(symptom: Symptom) -> Call | None:
    error = symptom.error
    if error is not None and error.collective is not None:
        return error.collective.partition("(")[0], error.collective_bytes
    text = _text(symptom)
    return None if text is None else (text, None)


def _name(symptom: Symptom) -> str | None:
    text = _text(symptom)
    return None if text is None else text.partition("(")[0]


def _text(symptom: Symptom) -> str | None:
    if symptom.error is not None:
        return symptom.error.collective or of_error(symptom.error).collective
    return symptom.reading.collective if symptom.reading is not None else None
