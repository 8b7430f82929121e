"""Observations to candidate causes: each exception, sign and exit with its category, its weight and its rank."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from traceml_daemon.triage.ends import End
from traceml_daemon.triage.observations import Hit, Observations, Place, Raised
from traceml_daemon.triage.watchdogs import rank_in_group
from traceml_daemon.triage.whose_error import is_agents, is_announcement


class Tier(IntEnum):
    """What beats what; the smallest wins."""

    RECORD = 0
    """The kernel or the device says what happened to a process."""
    ORIGINAL = 1
    FABRIC = 2
    CRASH = 3
    EXTERNAL = 4
    KILL = 5
    SYSTEM = 6
    """A communication library failed without saying whose fault it was."""
    TIMEOUT = 7
    RENDEZVOUS = 8
    EXIT = 9
    AGENT = 10
    PEER = 11


_TIERS: Final = {
    "host_oom_kill": Tier.RECORD,
    "gpu_hardware": Tier.RECORD,
    "network_fabric": Tier.FABRIC,
    "segfault": Tier.CRASH,
    "abort": Tier.CRASH,
    "illegal_instruction": Tier.CRASH,
    "preempted_or_cancelled": Tier.EXTERNAL,
    "sigterm_unattributed": Tier.EXTERNAL,
    "hangup": Tier.EXTERNAL,
    "interrupted": Tier.EXTERNAL,
    "hang": Tier.EXTERNAL,
    "sigkill_unattributed": Tier.KILL,
    "nccl_system_error": Tier.SYSTEM,
    "collective_timeout": Tier.TIMEOUT,
    "rendezvous_failed": Tier.RENDEZVOUS,
    "nonzero_exit": Tier.EXIT,
    "agent_failure": Tier.AGENT,
    "collateral_only": Tier.PEER,
}
_MILD: Final = re.compile(r"(?<!=)\b(?:WARNING|(?<!NCCL )WARN|INFO|DEBUG|\w+Warning)\b")
"""A level at which a program says what it goes on after; not `NCCL_DEBUG=INFO`."""
_RETRIED: Final = re.compile(
    r"(?i)\bretry|\battempt \d|\bfall(?:ing)? back|\bskipp(?:ing|ed)|\bwill try|\boptional\b"
    r"|\b(?:disabl|ignor|continu)ing"
)
_GONE_ON: Final = re.compile(r"(?i)\b(?:falling back|continuing (?:without|with)|disabling|ignoring)\b")
_OF_ANOTHER_PROCESS: Final = re.compile(
    r"(?i)\b(?:torchrun|accelerate|deepspeed|torch\.distributed)\b[^\n]{0,300}\b(?:failed with|returned|exited with) "
    r"(?:a )?(?:non-?zero )?(?:exit )?(?:return)? ?(?:code|status)"
    r"|^Worker \d+ has failed|^Horovod detected that one or more processes"
    r"|^process \d+ terminated with (?:exit code|signal)"
)
"""Said by who started it: a test, a plugin of a scheduler, Ray, horovodrun, the old `mp.spawn`."""
_BUILT_ELSEWHERE: Final = re.compile(r"\btorch_extensions/\S+\.so: cannot open shared object")
"""Of an extension that another rank was building."""
_WRAPPERS: Final = frozenset(
    {
        "ActorDiedError",
        "RayActorError",
        "RayTaskError",
        "TrainingFailedError",
        "WorkerCrashedError",
        "ChildFailedError",
        "FailedJobError",
        "UnexpectedStatusException",
        "CheckpointException",
        "SignalException",
        "ProcessRaisedException",
        "ProcessExitedException",
        "SystemExit",
    }
)


@dataclass(slots=True)
class Cause:
    """One thing that may be the reason of the failure."""

    category: str
    is_stated: bool
    place: Place
    rank: int | None
    is_attributed: bool
    """The rank is that of the line itself, not concluded from exits."""
    time: float | None
    signature: str
    raised: Raised | None = None
    end: End | None = None
    support: list[Place] = field(default_factory=list)
    tier: Tier = Tier.ORIGINAL
    went_on_at: int = 0
    """As observed."""
    is_named_by_message: bool = False
    """The rank is the one in the message, which the script may have meant of another one."""
    is_weak: bool = False
    """Printed, but maybe not what ended a process: in a thread, as a warning, or only suggested."""

    @property
    def order(self) -> tuple[int, int]:
        return self.place.file, self.place.line


def tier_of(category: str, *, is_record: bool = False) -> Tier:
    if is_record and category in ("preempted_or_cancelled", "sigterm_unattributed"):
        return Tier.EXTERNAL
    return _TIERS.get(category, Tier.ORIGINAL)


def causes_of(seen: Observations) -> list[Cause]:
    """Every exception, and every line with a sign, that may be a cause, in the order of the files."""
    superseded = {id(raised.earlier) for raised in seen.raised if raised.earlier is not None}
    causes = [
        classify(_before_clean_up(raised))
        for raised in seen.raised
        if id(raised) not in superseded and not raised.is_ignored and not is_wrapper(raised)
        if not is_announcement(raised, seen)
    ]
    hits: dict[tuple[str, int, int], Hit] = {}
    for hit in sorted(seen.hits, key=lambda hit: (hit.rank is None, not hit.is_stated)):
        if not hit.is_support:
            hits.setdefault((hit.category, hit.place.file, hit.place.line), hit)
    causes += [_of_hit(hit) for hit in hits.values()]
    return sorted(causes, key=lambda cause: cause.order)


def _before_clean_up(raised: Raised) -> Raised:
    """What a rank failed of that then ended the workers of its own loader, which its handler took for their failure."""
    while raised.earlier is not None and any(frame.endswith(":_shutdown_workers") for frame in raised.frames):
        raised = raised.earlier
    return raised


def _of_hit(hit: Hit) -> Cause:
    rank = hit.rank if hit.rank is not None else rank_in_group(hit.place.quote)
    return Cause(
        category=hit.category,
        is_stated=hit.is_stated,
        place=hit.place,
        rank=rank,
        is_attributed=rank is not None,
        time=hit.time,
        signature=hit.category,
        tier=tier_of(hit.category, is_record=hit.is_record),
        went_on_at=hit.went_on_at,
        is_weak=not hit.is_record and (not hit.is_stated or _is_mild(hit.place.quote)),
    )


def _is_mild(quote: str) -> bool:
    return _MILD.search(quote) is not None or _RETRIED.search(quote) is not None


def classify(raised: Raised) -> Cause:
    """The cause that an exception is, by the signs of its whole chain."""
    chain = raised.chain()
    best = best_hit([hit for member in chain for hit in member.hits])
    if best is None or best.is_support:
        category, is_stated = (best.category, False) if best else ("python_exception", True)
        category = "agent_failure" if best is None and is_agents(raised) else category
    else:
        category, is_stated = best.category, best.is_stated
    if raised.short_type == "KeyboardInterrupt":
        category, is_stated = "interrupted", True
    if category in ("segfault", "abort", "bus_error_shm", "illegal_instruction") and _is_all_agents(raised):
        category, is_stated = "agent_failure", True
    is_stated = is_stated and (raised.has_header or bool(raised.frames) or bool(raised.message))
    rank, is_attributed = _own_rank(raised, best)
    place = best.place if best is not None else raised.place
    return Cause(
        category=category,
        is_stated=is_stated,
        place=place,
        rank=rank,
        is_attributed=is_attributed,
        time=raised.time,
        signature=f"{category} {raised.type} {_folded(raised.message)}",
        raised=raised,
        support=_support(raised, best),
        tier=tier_of(category),
        went_on_at=raised.went_on_at,
        is_weak=raised.is_in_thread or _is_retried(raised) or _BUILT_ELSEWHERE.search(raised.message) is not None,
    )


def _support(raised: Raised, best: Hit | None) -> list[Place]:
    """The lines beside the one that decides: the message, and what else it says of the same."""
    if best is None:
        return []
    alike = [hit.place for member in raised.chain() for hit in member.hits if hit.category == best.category]
    return [place for place in dict.fromkeys([raised.place, *alike]) if place != best.place][:3]


def _is_retried(raised: Raised) -> bool:
    """A line like an exception, without a traceback, that says how it went on; or the line below a traceback does."""
    message, _, below = raised.message.partition("\n")
    if _GONE_ON.search(below.partition("\n")[0]):
        return True
    return not raised.has_header and not raised.frames and _RETRIED.search(message) is not None


def best_hit(hits: list[Hit]) -> Hit | None:
    """The sign that decides: of the highest priority, of those the first; weak ones only if there is no other."""
    strong = [hit for hit in hits if not hit.is_support] or hits
    return max(strong, key=lambda hit: (hit.priority, hit.is_stated), default=None)


def is_wrapper(raised: Raised) -> bool:
    """It says only that another process failed."""
    if raised.short_type in _WRAPPERS or _OF_ANOTHER_PROCESS.search(raised.message):
        return True
    if raised.short_type != "CalledProcessError":
        return False
    return "--local" in raised.message or re.search(r"launch|accelerate", "".join(raised.frames)) is not None


def _is_all_agents(raised: Raised) -> bool:
    frames = [frame.replace("\\", "/") for frame in raised.frames]
    return bool(frames) and all(re.search(r"torch/distributed/|runpy|bin/torchrun", frame) for frame in frames)


def _own_rank(raised: Raised, best: Hit | None) -> tuple[int | None, bool]:
    if raised.is_in_table:
        return raised.label_rank, raised.label_rank is not None
    rank = raised.speaker.rank
    if rank is None and best is not None:
        rank = best.rank
    return rank, rank is not None


def _folded(message: str) -> str:
    first = message.strip().partition("\n")[0][:200]
    return re.sub(r"0x[0-9a-f]+|\d+(?:\.\d+)?|/[^\s'\":]+", "#", first)


def is_consequence(cause: Cause) -> bool:
    return cause.tier in (Tier.PEER, Tier.TIMEOUT)
