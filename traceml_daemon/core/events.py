"""What the core is told (events, past tense) and what it answers (commands, imperative).

The shell turns wire messages into events and executes commands; nothing here knows of messages, sockets or clocks.
All `now` and `_s` times are seconds of one monotonic clock of the shell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class Incarnation(NamedTuple):
    """One life of a worker. The global rank is its property, not its identity."""

    node_index: int
    local_rank: int
    attempt: int


class RankPlace(NamedTuple):
    """Where an incarnation stands in the job."""

    rank: int
    world_size: int
    local_world_size: int
    torch_restart_count: int
    host: str
    pid: int


# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """Its launcher connected, or connected again. A shell that a launcher started may say so of it at once."""

    node_index: int
    is_owner: bool
    local_world_size: int
    """0 where the launcher does not know yet (`--nproc-per-node auto`)."""


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Its launcher's connection is gone, or its process is. After a final `NodeEnded` this means nothing."""

    node_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnding:
    """What a node's report says of one of its incarnations."""

    incarnation: Incarnation
    place: RankPlace
    exit_code: int | None
    signal: str | None
    is_marker_sent: bool
    why: str | None = None
    """Why no marker came, in words ("killed by SIGKILL", "exit code 7 without cleanup"); null where it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnded:
    """A launcher said that training is over on its node and names every incarnation it ever had."""

    node_index: int
    exit_code: int | None
    signal: str | None
    interrupted_by: str | None
    ranks: tuple[RankEnding, ...] = ()
    is_final: bool = True
    """False: torchrun is gone, but records of dead ranks are still being handed in."""


@dataclass(frozen=True, slots=True)
class RankStarted:
    """A launcher gave a worker its pipes and ring; it has not connected yet."""

    incarnation: Incarnation
    place: RankPlace


@dataclass(frozen=True, slots=True)
class RankJoined:
    """It connected and proved who it is."""

    incarnation: Incarnation
    place: RankPlace


@dataclass(frozen=True, slots=True)
class RankSent:
    """Records arrived, from the rank itself or handed in by its launcher."""

    incarnation: Incarnation
    last_step: int
    """The highest completed step among all records so far; 0 if none."""


@dataclass(frozen=True, slots=True)
class RankFinished:
    """The marker: its runtime reached its orderly end (which an exception can precede)."""

    incarnation: Incarnation
    exit_code: int | None = None
    has_error: bool = False
    is_complete: bool = True
    """Every record that it ever made has arrived. False: say it again once that is so, and a settle window is saved."""


@dataclass(frozen=True, slots=True)
class RankDropped:
    """Its connection is gone, before or after its marker: a closed connection carries no more telemetry."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class RankExited:
    """Its launcher saw its process end: nobody needs to wait for a reconnect."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class LauncherInterrupted:
    """A launcher got its first signal; training still runs."""

    node_index: int
    signal: str
    at_ns: int = 0
    """Wall clock of the launcher's host; 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The daemon is told to stop (SIGTERM): finalize what is there."""


@dataclass(frozen=True, slots=True)
class DataDrained:
    """The store has committed everything that arrived, and nothing is queued."""


Event = (
    NodeJoined
    | NodeLost
    | NodeEnded
    | RankStarted
    | RankJoined
    | RankSent
    | RankFinished
    | RankDropped
    | RankExited
    | LauncherInterrupted
    | StopRequested
    | DataDrained
)

# --- commands -----------------------------------------------------------------------------------------------------

RankStateName = Literal["expected", "active", "suspect", "finished", "lost"]
SealReason = Literal["all_finished", "ranks_missing", "finalize_timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMissing:
    """A rank whose last attempt sent no marker."""

    rank: int
    incarnation: Incarnation | None
    """Null where no attempt of that rank was ever seen."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    node_index: int
    exit_code: int | None
    signal: str | None
    why: str | None
    """Where the node did not report its end: what is known instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingVerdict:
    """How training ended. Telemetry has no say in it."""

    status: Literal["completed", "failed", "interrupted"]
    exit_code: int | None
    signal: str | None
    nodes: tuple[NodeVerdict, ...] = ()


@dataclass(frozen=True, slots=True)
class EndTraining:
    """Training has ended: write the manifest at once, telemetry still pending. Issued exactly once, before SealRun."""

    verdict: TrainingVerdict
    ended_s: float
    """When it ended, on the shell's clock: the loss of the owner's launcher lies before the moment of this command."""


@dataclass(frozen=True, slots=True)
class MarkInterrupted:
    """The first signal: an `interrupted` manifest and a provisional summary, now."""

    signal: str
    at_ns: int = 0
    """When the launcher got it, by its own wall clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRun:
    """No more telemetry is taken: close the database and write the reports. Issued exactly once."""

    reason: SealReason
    verdict: TrainingVerdict
    """As in `EndTraining`, with what nodes and ranks said since."""
    finished: tuple[int, ...]
    missing: tuple[RankMissing, ...] = ()
    deadline_s: float = field(default=float("inf"))
    """When the reports must be written."""


@dataclass(frozen=True, slots=True)
class WarnOnce:
    """A sentence for the daemon's diagnostics and the finalization warning."""

    text: str


Command = EndTraining | MarkInterrupted | SealRun | WarnOnce
