"""The finalization machine under random histories: its invariants hold whatever happens in whatever order."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.harness.core_driver import Played, TimedEvent, ending, place, play
from traceml_daemon.core import events as ev
from traceml_daemon.core.finalize import RunCore
from traceml_daemon.core.settings import CoreSettings

NPROC = 2
unhurried = settings(deadline=None, max_examples=60)
"""A busy machine is no failure."""
GAPS_S = (0.0, 0.0, 0.0, 0.004, 0.3, 1.0, 2.5, 5.0, 11.0)


@dataclass(frozen=True)
class History:
    settings: CoreSettings
    script: list[TimedEvent]

    def play(self) -> Played:
        return play(self.settings, self.script)


def place_of(incarnation: ev.Incarnation, nnodes: int) -> ev.RankPlace:
    """After a restart the nodes have swapped their ranks."""
    index = (incarnation.node_index + incarnation.attempt) % nnodes
    return place(index * NPROC + incarnation.local_rank, nnodes * NPROC, NPROC)


def incarnations(nnodes: int) -> st.SearchStrategy[ev.Incarnation]:
    return st.builds(ev.Incarnation, st.integers(0, nnodes - 1), st.integers(0, NPROC - 1), st.integers(0, 1))


def rank_events(nnodes: int) -> st.SearchStrategy[ev.Event]:
    ranks = incarnations(nnodes)
    return st.one_of(
        ranks.map(lambda r: ev.RankStarted(r, place_of(r, nnodes))),
        ranks.map(lambda r: ev.RankJoined(r, place_of(r, nnodes))),
        ranks.map(lambda r: ev.RankJoined(r, place_of(r, nnodes))),
        st.builds(ev.RankSent, ranks, st.integers(0, 100)),
        st.builds(ev.RankFinished, ranks, st.sampled_from([None, 0, 1]), st.booleans(), st.booleans()),
        ranks.map(ev.RankDropped),
        ranks.map(ev.RankExited),
        st.just(ev.DataDrained()),
    )


@st.composite
def node_ends(draw: st.DrawFn, nnodes: int) -> ev.NodeEnded:
    index = draw(st.integers(0, nnodes - 1))
    ranks = [r for r in draw(st.lists(incarnations(nnodes), unique=True, max_size=3)) if r.node_index == index]
    return ev.NodeEnded(
        node_index=index,
        exit_code=draw(st.sampled_from([0, 1, None])),
        signal=draw(st.sampled_from([None, None, "SIGKILL"])),
        interrupted_by=draw(st.sampled_from([None, None, "SIGTERM"])),
        ranks=tuple(ending(r, place_of(r, nnodes), is_marker_sent=draw(st.booleans()), why="killed") for r in ranks),
        is_final=draw(st.booleans()),
    )


def node_events(nnodes: int) -> st.SearchStrategy[ev.Event]:
    indices = st.integers(0, nnodes - 1)
    return st.one_of(
        indices.map(lambda i: ev.NodeJoined(i, i == 0, NPROC)),
        indices.map(lambda i: ev.NodeJoined(i, i == 0, NPROC)),
        indices.map(ev.NodeLost),
        indices.map(lambda i: ev.LauncherInterrupted(i, "SIGINT")),
        node_ends(nnodes),
    )


@st.composite
def histories(draw: st.DrawFn, *, is_ended: bool = True) -> History:
    nnodes = draw(st.integers(1, 2))
    is_direct = draw(st.booleans())
    config = CoreSettings(
        nnodes=nnodes,
        nproc_per_node=draw(st.sampled_from([0, NPROC])),
        is_direct=is_direct,
        finalize_timeout_s=draw(st.sampled_from([2.0, 30.0])),
        settle_s=draw(st.sampled_from([0.0, 1.0])),
    )
    kinds = rank_events(nnodes) if is_direct else st.one_of(rank_events(nnodes), node_events(nnodes))
    now, script = 0.0, []
    for event in draw(st.lists(kinds, max_size=25)):
        now += draw(st.sampled_from(GAPS_S))
        script.append((now, event))
    if is_ended:
        now += draw(st.sampled_from(GAPS_S))
        script.append((now, ev.StopRequested()))
    return History(config, script)


def source_of(event: ev.Event) -> object:
    """Events of one source come in its own order; the store drains after what arrived in its instant."""
    match event:
        case ev.RankJoined() | ev.RankSent() | ev.RankFinished() | ev.RankDropped():
            return event.incarnation
        case ev.RankStarted() | ev.RankExited():
            return event.incarnation.node_index
        case ev.StopRequested() | ev.DataDrained():
            return type(event)
        case _:
            return event.node_index


def shuffle_instants(script: list[TimedEvent], seed: int) -> list[TimedEvent]:
    """Another order of the same history: sources of one instant are interleaved anew."""
    chance, result = random.Random(seed), []
    for at_s, group in groupby(script, key=lambda timed: timed[0]):
        queues: dict[object, list[TimedEvent]] = {}
        drains = []
        for timed in group:
            if isinstance(timed[1], ev.DataDrained):
                drains.append(timed)
            else:
                queues.setdefault(source_of(timed[1]), []).append(timed)
        while queues:
            key = chance.choice(sorted(queues, key=repr))
            result.append(queues[key].pop(0))
            if not queues[key]:
                del queues[key]
        result += [(at_s, event) for _, event in drains]
    return result


def outcome(played: Played) -> object:
    _, seal = played.sealed
    return replace(seal, deadline_s=0.0)


@unhurried
@given(histories())
def test_sealed_exactly_once_and_in_time(history: History) -> None:
    """The driver checks single end, single seal, deadline, partition and progress; here that the seal comes at all."""
    played = history.play()

    assert len(played.of(ev.SealRun)) == 1
    assert played.core.phase == "sealed"


@unhurried
@given(histories(is_ended=False))
def test_silence_alone_never_seals_a_living_run(history: History) -> None:
    """Whatever is due after a launched run's last event, none of it ends a run whose launchers are all at work."""
    is_living = not history.settings.is_direct and not any(
        isinstance(event, ev.NodeEnded | ev.NodeLost) for _, event in history.script
    )
    if is_living:
        assert history.play().of(ev.EndTraining) == []


@unhurried
@given(histories())
def test_a_replay_gives_the_same_commands(history: History) -> None:
    assert history.play().commands == history.play().commands


@unhurried
@given(histories(), st.integers())
def test_events_of_one_instant_give_one_verdict_in_any_order(history: History, seed: int) -> None:
    orderly = replace(history, script=shuffle_instants(history.script, 0))
    shuffled = replace(history, script=shuffle_instants(history.script, seed))

    assert outcome(orderly.play()) == outcome(shuffled.play())


@unhurried
@given(histories(), st.floats(0.0, 3.0))
def test_repeated_markers_change_nothing(history: History, delay_s: float) -> None:
    markers = [(at_s + delay_s, event) for at_s, event in history.script if isinstance(event, ev.RankFinished)]
    repeated = replace(history, script=sorted([*history.script, *markers], key=lambda timed: timed[0]))

    assert history.play().commands == repeated.play().commands


class Finalization(RuleBasedStateMachine):
    """A launched run of two ranks, its clock moved by hand: the core's answers against a model of what must not be."""

    ranks = (ev.Incarnation(0, 0, 0), ev.Incarnation(0, 1, 0))

    @initialize(timeout_s=st.sampled_from([4.0, 60.0]), settle_s=st.sampled_from([0.0, 1.0]))
    def start(self, timeout_s: float, settle_s: float) -> None:
        self.config = CoreSettings(nproc_per_node=2, finalize_timeout_s=timeout_s, settle_s=settle_s)
        self.now = 0.0
        self.core = RunCore(self.config, self.now)
        self.commands: list[ev.Command] = []
        self.node_ended_s: float | None = None
        self.last_deadline: float | None = None
        self.tell(ev.NodeJoined(0, True, 2))

    def tell(self, event: ev.Event) -> None:
        self.commands += self.core.handle(event, self.now)

    @rule(index=st.integers(0, 1), step=st.integers(0, 9))
    def send(self, index: int, step: int) -> None:
        rank = self.ranks[index]
        self.tell(ev.RankJoined(rank, place(index, 2)))
        self.tell(ev.RankSent(rank, step))

    @rule(index=st.integers(0, 1))
    def drop(self, index: int) -> None:
        self.tell(ev.RankDropped(self.ranks[index]))

    @rule(index=st.integers(0, 1))
    def finish(self, index: int) -> None:
        self.tell(ev.RankFinished(self.ranks[index]))
        self.tell(ev.DataDrained())

    @rule(is_final=st.booleans(), exit_code=st.sampled_from([0, 1]))
    def end_node(self, is_final: bool, exit_code: int) -> None:
        self.node_ended_s = self.now if self.node_ended_s is None else self.node_ended_s
        end = ev.NodeEnded(node_index=0, exit_code=exit_code, signal=None, interrupted_by=None, is_final=is_final)
        self.tell(end)

    @rule(seconds=st.sampled_from([0.02, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            assert due > self.now
            self.now = due
            self.commands += self.core.advance(due)
        self.now = until

    @precondition(lambda self: self.core.next_deadline() is not None)
    @rule()
    def wake(self) -> None:
        due = self.core.next_deadline()
        assert due is not None
        self.now = max(self.now, due)
        self.commands += self.core.advance(self.now)
        assert self.core.next_deadline() is None or self.core.next_deadline() > self.now

    @invariant()
    def training_ends_only_with_its_node(self) -> None:
        if self.node_ended_s is None:
            assert self.commands == []

    @invariant()
    def sealed_once_and_in_time(self) -> None:
        kinds = [type(command) for command in self.commands]
        assert kinds.count(ev.EndTraining) <= 1
        assert kinds.count(ev.SealRun) == (self.core.phase == "sealed")
        if self.node_ended_s is not None and self.now > self.node_ended_s + self.config.collect_s + 0.1:
            assert self.core.phase == "sealed"


TestFinalization = Finalization.TestCase
TestFinalization.settings = settings(unhurried, stateful_step_count=30)
