"""What a second try fails of only because the first one left it behind: a name, a file, a port, a lock. Pure."""

from __future__ import annotations

import re
from typing import Final

from traceml_daemon.triage.observations import Observations, Place, Raised

LITERALS: Final = ("was killed", "be retried", "be restarted", "retrying", "restarting")
"""One of them stands in every line that tells of another try, in lower case."""
_RETRY: Final = re.compile(
    r"[Ww]orker died or was killed while executing a task"
    r"|\b(?i:task|actor|worker|trial|replica|pod|container|job)\b.{0,120}\bwill be (?:retried|restarted)\b"
    r"|\b(?:[Rr]etrying|[Rr]estarting) (?:the )?(?:failed |dead )?(?:task|actor|worker|trial|replica|pod|container)\b"
)
_TAKEN: Final = re.compile(
    r"(?i)\balready (?:been )?(?:taken|exists?|in use|registered|running|locked|held|created|initiali[sz]ed)\b"
    r"|\bfile exists\b|\bdirectory not empty\b|\bunable to (?:lock file|acquire (?:the )?lock)\b"
    r"|\block\b.{0,160}\b(?:could|can)(?: ?not) be acquired\b|\bprocess group twice\b"
)


def tells_of_a_retry(text: str) -> bool:
    """Whether a launcher says that a process is gone, and that its work is tried again."""
    return _RETRY.search(text) is not None


def is_leftover(raised: Raised) -> bool:
    """Whether its message says that somebody had been there before."""
    return _TAKEN.search(f"{raised.type}: {raised.message}") is not None


def drop_leftovers(seen: Observations) -> None:
    """Forget errors of a second try that say only so; what the first one died of may not be in these logs."""
    left = [one for one in seen.raised if is_leftover(one) and _is_below(one.place, seen.retries)]
    forgotten = {id(member) for one in left for member in one.chain()}
    seen.raised = [one for one in seen.raised if id(one) not in forgotten]


def _is_below(place: Place, retries: list[Place]) -> bool:
    return any(retry.file == place.file and retry.line < place.line for retry in retries)
