"""Plays scripts of events to a run's core with a clock that jumps, and checks its invariants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceml_daemon.core import events as ev
from traceml_daemon.core.finalize import RunCore
from traceml_daemon.core.settings import CoreSettings

TimedEvent = tuple[float, ev.Event]
_MAX_ADVANCES = 10_000


@dataclass(frozen=True, slots=True)
class Played:
    """What a core answered, each command with its time."""

    core: RunCore
    commands: tuple[tuple[float, ev.Command], ...]

    def of(self, kind: type[ev.Command]) -> list[tuple[float, ev.Command]]:
        return [(now, command) for now, command in self.commands if isinstance(command, kind)]

    @property
    def ended(self) -> tuple[float, ev.EndTraining]:
        ((now, command),) = self.of(ev.EndTraining)
        assert isinstance(command, ev.EndTraining)
        return now, command

    @property
    def sealed(self) -> tuple[float, ev.SealRun]:
        ((now, command),) = self.of(ev.SealRun)
        assert isinstance(command, ev.SealRun)
        return now, command

    @property
    def missing(self) -> dict[int, str]:
        return {missing.rank: missing.why for missing in self.sealed[1].missing}


def play(settings: CoreSettings, script: Sequence[TimedEvent], *, until_s: float = 10_000.0) -> Played:
    """Play the script in its order; afterwards only time passes, until nothing is due any more or `until_s`."""
    core = RunCore(settings, 0.0)
    commands: list[tuple[float, ev.Command]] = []
    for at_s, event in script:
        commands += _pass_time(core, at_s)
        commands += [(at_s, command) for command in core.handle(event, at_s)]
    commands += _pass_time(core, until_s)
    played = Played(core, tuple(commands))
    check_invariants(settings, played)
    return played


def _pass_time(core: RunCore, until_s: float) -> list[tuple[float, ev.Command]]:
    commands: list[tuple[float, ev.Command]] = []
    before = float("-inf")
    for _ in range(_MAX_ADVANCES):
        due = core.next_deadline()
        if due is None or due >= until_s:
            return commands
        assert due > before, "next_deadline makes no progress"
        before = due
        commands += [(due, command) for command in core.advance(due)]
    raise AssertionError(f"{_MAX_ADVANCES} deadlines before {until_s} s: a busy loop")


def check_invariants(settings: CoreSettings, played: Played) -> None:
    """What holds for every script: one end, one seal, in time, and the ranks partitioned."""
    ends, seals = played.of(ev.EndTraining), played.of(ev.SealRun)
    assert len(ends) <= 1
    assert len(seals) <= 1
    assert len(played.of(ev.MarkInterrupted)) <= 1
    if not seals:
        return
    kinds = [type(command) for _, command in played.commands]
    assert kinds.index(ev.EndTraining) < kinds.index(ev.SealRun) == len(kinds) - 1
    (sealed_s, seal), (told_s, end) = played.sealed, played.ended
    assert sealed_s <= max(told_s, end.ended_s + settings.collect_s) + 1e-6
    assert sealed_s <= seal.deadline_s
    ranks = sorted([*seal.finished, *(missing.rank for missing in seal.missing)])
    assert ranks == list(range(played.core.world_size()))
    assert all(missing.why for missing in seal.missing)
    assert played.core.next_deadline() is None


def place(rank: int, world_size: int, local_world_size: int = 0) -> ev.RankPlace:
    return ev.RankPlace(
        rank=rank,
        world_size=world_size,
        local_world_size=local_world_size or world_size,
        torch_restart_count=0,
        host="node-a",
        pid=100 + rank,
    )


def ending(
    incarnation: ev.Incarnation, where: ev.RankPlace, *, is_marker_sent: bool = True, why: str | None = None
) -> ev.RankEnding:
    return ev.RankEnding(
        incarnation=incarnation,
        place=where,
        exit_code=0 if is_marker_sent else None,
        signal=None if is_marker_sent else "SIGKILL",
        is_marker_sent=is_marker_sent,
        why=why,
    )
