"""The rows of the contract's finalization table: a script, its verdict, and what it cost in time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from tests.harness.core_driver import Played, TimedEvent, ending, place, play
from traceml_daemon.core import events as ev
from traceml_daemon.core.finalize import SIMULTANEOUS_S
from traceml_daemon.core.settings import CoreSettings

TURN = SIMULTANEOUS_S
DIRECT = CoreSettings(nproc_per_node=3, is_direct=True, finalize_timeout_s=60.0, write_reserve_s=10.0)
ONE_NODE = CoreSettings(nproc_per_node=2, finalize_timeout_s=60.0, write_reserve_s=10.0)
TWO_NODES = CoreSettings(nnodes=2, nproc_per_node=1, finalize_timeout_s=60.0, write_reserve_s=10.0)

A, B, C = (ev.Incarnation(0, i, 0) for i in range(3))
FAR = ev.Incarnation(1, 0, 0)


def joined(*ranks: ev.Incarnation, at_s: float = 1.0, world_size: int = 3) -> list[TimedEvent]:
    return [(at_s, ev.RankJoined(r, place(r.local_rank, world_size))) for r in ranks]


def finished(*ranks: ev.Incarnation, at_s: float) -> list[TimedEvent]:
    """A marker, the end of the connection, and everything stored."""
    marks = [(at_s, event) for r in ranks for event in (ev.RankFinished(r), ev.RankDropped(r))]
    return [*marks, (at_s, ev.DataDrained())]


def sent(rank: ev.Incarnation, *, from_s: float, to_s: float, every_s: float) -> list[TimedEvent]:
    times = [from_s + every_s * i for i in range(int((to_s - from_s) / every_s))]
    return [(at_s, ev.RankSent(rank, 1 + i)) for i, at_s in enumerate(times)]


def node_joined(index: int = 0, *, at_s: float = 0.5, local_world_size: int = 2) -> TimedEvent:
    return at_s, ev.NodeJoined(index, index == 0, local_world_size)


def node_ended(
    *ends: ev.RankEnding,
    at_s: float,
    index: int = 0,
    exit_code: int | None = 0,
    interrupted_by: str | None = None,
    is_final: bool = True,
) -> TimedEvent:
    report = ev.NodeEnded(
        node_index=index,
        exit_code=exit_code,
        signal=None,
        interrupted_by=interrupted_by,
        ranks=ends,
        is_final=is_final,
    )
    return at_s, report


def two_nodes_up() -> list[TimedEvent]:
    return [
        node_joined(0, local_world_size=1),
        node_joined(1, local_world_size=1),
        (1.0, ev.RankJoined(A, place(0, 2, 1))),
        (1.0, ev.RankJoined(FAR, place(1, 2, 1))),
    ]


@dataclass(frozen=True)
class Row:
    """One expected history."""

    name: str
    settings: CoreSettings
    script: list[TimedEvent]
    ended_s: float
    sealed_s: float
    status: str
    reason: str
    exit_code: int | None = None
    missing: dict[int, str] = field(default_factory=dict)


KILLED = ending(B, place(1, 2), is_marker_sent=False, why="killed by SIGKILL")
NODE_0_END = ending(A, place(0, 2, 1))
NODE_1_END = ending(FAR, place(1, 2, 1))

ROWS = [
    Row(
        name="all ranks sent markers, connections closed, everything stored: no settle window",
        settings=ONE_NODE,
        script=[
            node_joined(),
            *joined(A, B, world_size=2),
            *finished(A, B, at_s=20.0),
            node_ended(ending(A, place(0, 2)), ending(B, place(1, 2)), at_s=20.1),
        ],
        ended_s=20.1,
        sealed_s=20.1 + TURN,
        status="completed",
        reason="all_finished",
        exit_code=0,
    ),
    Row(
        name="a store that is behind costs no more than the settle window",
        settings=ONE_NODE,
        script=[
            node_joined(),
            *joined(A, B, world_size=2),
            (19.0, ev.RankSent(A, 5)),
            (20.0, ev.RankFinished(A)),
            (20.0, ev.RankFinished(B)),
            (20.0, ev.RankDropped(A)),
            (20.0, ev.RankDropped(B)),
            node_ended(at_s=20.1),
        ],
        ended_s=20.1,
        sealed_s=20.1 + TURN + 1.0,
        status="completed",
        reason="all_finished",
        exit_code=0,
    ),
    Row(
        name="a killed rank whose launcher confirms its end costs nothing",
        settings=ONE_NODE,
        script=[
            node_joined(),
            *joined(A, B, world_size=2),
            (10.0, ev.RankExited(B)),
            (10.0, ev.RankDropped(B)),
            *finished(A, at_s=10.5),
            node_ended(ending(A, place(0, 2)), KILLED, at_s=11.0, exit_code=1),
        ],
        ended_s=11.0,
        sealed_s=11.0 + TURN,
        status="failed",
        reason="ranks_missing",
        exit_code=1,
        missing={1: "killed by SIGKILL"},
    ),
    Row(
        name="a dead rank whose connection a child of it holds open costs the settle window",
        settings=ONE_NODE,
        script=[
            node_joined(),
            *joined(A, B, world_size=2),
            (10.0, ev.RankExited(B)),
            *finished(A, at_s=10.5),
            node_ended(ending(A, place(0, 2)), KILLED, at_s=11.0, exit_code=1),
        ],
        ended_s=11.0,
        sealed_s=11.0 + TURN + 1.0,
        status="failed",
        reason="ranks_missing",
        exit_code=1,
        missing={1: "killed by SIGKILL"},
    ),
    Row(
        name="training ends with torchrun, the seal waits for what the launcher still hands in",
        settings=ONE_NODE,
        script=[
            node_joined(),
            *joined(A, B, world_size=2),
            *finished(A, at_s=10.0),
            (10.0, ev.RankDropped(B)),
            node_ended(at_s=10.0, exit_code=1, is_final=False),
            (19.0, ev.RankSent(B, 49)),
            (19.0, ev.DataDrained()),
            node_ended(KILLED, at_s=19.1, exit_code=1),
        ],
        ended_s=10.0,
        sealed_s=19.1 + TURN,
        status="failed",
        reason="ranks_missing",
        exit_code=1,
        missing={1: "killed by SIGKILL"},
    ),
    Row(
        name="a rank that never started is known by the launcher's report",
        settings=ONE_NODE,
        script=[
            node_joined(),
            *joined(A, world_size=2),
            *finished(A, at_s=20.0),
            node_ended(ending(A, place(0, 2)), at_s=20.1, exit_code=1),
        ],
        ended_s=20.1,
        sealed_s=20.1 + TURN,
        status="failed",
        reason="ranks_missing",
        exit_code=1,
        missing={1: "never started"},
    ),
    Row(
        name="a started worker that never connected is named so",
        settings=ONE_NODE,
        script=[
            node_joined(),
            *joined(A, world_size=2),
            (1.0, ev.RankStarted(B, place(1, 2))),
            *finished(A, at_s=20.0),
            (20.0, ev.NodeLost(0)),
        ],
        ended_s=20.0,
        sealed_s=25.0 + 5.0 + 1.0,
        status="failed",
        reason="ranks_missing",
        missing={1: "node 0's launcher was lost"},
    ),
    Row(
        name="direct: one rank of three dropped",
        settings=DIRECT,
        script=[*joined(A, B, C), *finished(A, B, at_s=20.0), (20.0, ev.RankDropped(C))],
        ended_s=20.0,
        sealed_s=20.0 + 5.0 + 1.0,
        status="failed",
        reason="ranks_missing",
        missing={2: "joined 1.0 s into the run, no sign after 1.0 s"},
    ),
    Row(
        name="direct: one rank of three never joined",
        settings=DIRECT,
        script=[*joined(A, B), *finished(A, B, at_s=20.0)],
        ended_s=20.0,
        sealed_s=20.0 + 5.0,
        status="failed",
        reason="ranks_missing",
        missing={2: "never started"},
    ),
    Row(
        name="direct: one rank hangs until the daemon is told to stop",
        settings=DIRECT,
        script=[*joined(A, B, C), *finished(A, B, at_s=20.0), (500.0, ev.StopRequested())],
        ended_s=500.0,
        sealed_s=500.0 + 1.0,
        status="interrupted",
        reason="ranks_missing",
        missing={2: "was still connected when the daemon was told to stop"},
    ),
    Row(
        name="launched: one rank hangs on its open connection, its node is lost",
        settings=TWO_NODES,
        script=[
            *two_nodes_up(),
            (20.0, ev.NodeLost(1)),
            *finished(A, at_s=30.0),
            node_ended(NODE_0_END, at_s=30.0),
        ],
        ended_s=30.0,
        sealed_s=30.0 + TURN + 5.0 + 1.0,
        status="completed",
        reason="ranks_missing",
        exit_code=0,
        missing={1: "node 1's launcher was lost"},
    ),
    Row(
        name="a rank that talks on reaches the finalize timeout",
        settings=TWO_NODES,
        script=[
            *two_nodes_up(),
            (20.0, ev.NodeLost(1)),
            *finished(A, at_s=30.0),
            node_ended(NODE_0_END, at_s=30.0),
            *sent(FAR, from_s=30.5, to_s=200.0, every_s=1.0),
        ],
        ended_s=30.0,
        sealed_s=30.0 + 50.0,
        status="completed",
        reason="finalize_timeout",
        exit_code=0,
        missing={1: "was still connected when the finalize timeout of 60 s ran out"},
    ),
    Row(
        name="other nodes get ten seconds after the owner's end, then neither they nor their ranks are waited for",
        settings=TWO_NODES,
        script=[
            *two_nodes_up(),
            *finished(A, at_s=30.0),
            node_ended(NODE_0_END, at_s=30.0, exit_code=1),
            *sent(FAR, from_s=30.5, to_s=200.0, every_s=0.5),
        ],
        ended_s=30.0,
        sealed_s=30.0 + 10.0 + 1.0,
        status="failed",
        reason="ranks_missing",
        exit_code=1,
        missing={1: "node 1 had not reported its end 10 s after the owner's"},
    ),
    Row(
        name="a node that still waits for the others has those ten seconds too, and its ranks none beyond them",
        settings=TWO_NODES,
        script=[
            node_joined(0, local_world_size=1),
            node_joined(1, local_world_size=1),
            (1.0, ev.RankJoined(A, place(0, 2, 1))),
            *finished(A, at_s=30.0),
            node_ended(NODE_0_END, at_s=30.0, exit_code=1),
        ],
        ended_s=30.0,
        sealed_s=30.0 + 10.0 + 1.0,
        status="failed",
        reason="ranks_missing",
        exit_code=1,
        missing={1: "never started: node 1 had not reported its end 10 s after the owner's"},
    ),
    Row(
        name="a node whose launcher never connected is not waited for",
        settings=TWO_NODES,
        script=[
            node_joined(0, local_world_size=1),
            (1.0, ev.RankJoined(A, place(0, 2, 1))),
            *finished(A, at_s=30.0),
            node_ended(NODE_0_END, at_s=30.0, exit_code=1),
        ],
        ended_s=30.0,
        sealed_s=30.0 + TURN,
        status="failed",
        reason="ranks_missing",
        exit_code=1,
        missing={1: "never started: node 1's launcher never connected"},
    ),
    Row(
        name="after a restart of the daemon a launcher that has not come back yet has the grace",
        settings=replace(TWO_NODES, is_resumed=True),
        script=[
            node_joined(0, local_world_size=1),
            (1.0, ev.RankJoined(A, place(0, 2, 1))),
            *finished(A, at_s=30.0),
            node_ended(NODE_0_END, at_s=30.0, exit_code=1),
        ],
        ended_s=30.0,
        sealed_s=35.0 + TURN,
        status="failed",
        reason="ranks_missing",
        exit_code=1,
        missing={1: "never started: node 1's launcher never connected"},
    ),
    Row(
        name="the owner's launcher is lost: five seconds later failed, and nobody knows the exit code",
        settings=TWO_NODES,
        script=[*two_nodes_up(), (40.0, ev.NodeLost(0)), (40.5, ev.RankDropped(A)), (40.5, ev.RankDropped(FAR))],
        ended_s=40.0,
        sealed_s=45.5 + 1.0,
        status="failed",
        reason="ranks_missing",
        missing={
            0: "node 0's launcher was lost",
            1: "node 1 was still running when the owner's launcher was lost",
        },
    ),
    Row(
        name="a nonzero exit on another node fails the run, the owner's code stays the run's",
        settings=TWO_NODES,
        script=[
            *two_nodes_up(),
            *finished(A, FAR, at_s=30.0),
            node_ended(NODE_1_END, at_s=30.0, index=1, exit_code=137),
            node_ended(NODE_0_END, at_s=31.0),
        ],
        ended_s=31.0,
        sealed_s=31.0 + TURN,
        status="failed",
        reason="all_finished",
        exit_code=0,
    ),
    Row(
        name="a signal to another node's launcher does not make the run interrupted",
        settings=TWO_NODES,
        script=[
            *two_nodes_up(),
            (29.0, ev.LauncherInterrupted(1, "SIGTERM")),
            *finished(A, FAR, at_s=30.0),
            node_ended(NODE_1_END, at_s=30.0, index=1, exit_code=1, interrupted_by="SIGTERM"),
            node_ended(NODE_0_END, at_s=31.0, exit_code=1),
        ],
        ended_s=31.0,
        sealed_s=31.0 + TURN,
        status="failed",
        reason="all_finished",
        exit_code=1,
    ),
    Row(
        name="a signal to the owner's launcher does, whatever torchrun returned",
        settings=ONE_NODE,
        script=[
            node_joined(),
            *joined(A, B, world_size=2),
            (10.0, ev.LauncherInterrupted(0, "SIGTERM")),
            *finished(A, B, at_s=20.0),
            node_ended(at_s=20.0, exit_code=1, interrupted_by="SIGTERM"),
        ],
        ended_s=20.0,
        sealed_s=20.0 + TURN,
        status="interrupted",
        reason="all_finished",
        exit_code=1,
    ),
    Row(
        name="direct: every marker came, one of them told of an error",
        settings=DIRECT,
        script=[
            *joined(A, B, C),
            *finished(A, B, at_s=20.0),
            (20.0, ev.RankFinished(C, exit_code=1, has_error=True)),
            (20.0, ev.RankDropped(C)),
        ],
        ended_s=20.0,
        sealed_s=20.0 + TURN,
        status="failed",
        reason="all_finished",
    ),
    Row(
        name="direct: every marker came",
        settings=DIRECT,
        script=[*joined(A, B, C), *finished(A, B, C, at_s=20.0)],
        ended_s=20.0,
        sealed_s=20.0 + TURN,
        status="completed",
        reason="all_finished",
    ),
    Row(
        name="records that a marker announces and that have not come cost the settle window",
        settings=DIRECT,
        script=[
            *joined(A, B, C),
            *finished(A, B, at_s=20.0),
            (20.0, ev.RankFinished(C, is_complete=False)),
            (20.0, ev.RankDropped(C)),
        ],
        ended_s=20.0,
        sealed_s=20.0 + TURN + 1.0,
        status="completed",
        reason="all_finished",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_table(row: Row) -> None:
    played = play(row.settings, row.script)

    _, end = played.ended
    sealed_s, seal = played.sealed
    assert end.ended_s == pytest.approx(row.ended_s, abs=2 * TURN)
    assert sealed_s == pytest.approx(row.sealed_s, abs=4 * TURN)
    assert (seal.verdict.status, seal.verdict.exit_code) == (row.status, row.exit_code)
    assert seal.reason == row.reason
    assert played.missing == row.missing


def test_silence_alone_ends_nothing() -> None:
    played = play(ONE_NODE, [node_joined(), *joined(A, B, world_size=2), (5.0, ev.RankDropped(B))], until_s=1e6)

    assert played.commands == ()
    assert played.core.next_deadline() is None


def test_a_lost_rank_that_comes_back_is_active_again() -> None:
    script = [node_joined(), *joined(A, world_size=2), (5.0, ev.RankDropped(A)), *joined(A, at_s=60.0, world_size=2)]

    assert [r.state for r in play(ONE_NODE, script[:-1]).core.ranks] == ["lost"]
    assert [r.state for r in play(ONE_NODE, script).core.ranks] == ["active"]


def test_a_marker_that_comes_late_still_counts() -> None:
    killed = [node_joined(), *joined(A, B, world_size=2), (9.0, ev.RankExited(A)), (9.0, ev.RankExited(B))]
    script = [*killed, node_ended(at_s=10.0), (10.5, ev.RankFinished(A)), (10.9, ev.RankFinished(B))]
    played = play(ONE_NODE, script)

    assert played.sealed[1].finished == (0, 1)


def test_events_after_the_seal_are_counted_and_change_nothing() -> None:
    script = [*joined(A, B), *finished(A, B, at_s=20.0), *joined(C, at_s=300.0), (301.0, ev.RankFinished(C))]
    played = play(DIRECT, script)

    assert played.core.num_late_events == 2
    assert list(played.missing) == [2]


def test_the_first_signal_of_the_owner_is_told_once_and_at_once() -> None:
    signals = [(10.0, ev.LauncherInterrupted(0, "SIGTERM")), (11.0, ev.LauncherInterrupted(0, "SIGINT"))]
    played = play(ONE_NODE, [node_joined(), *joined(A, B, world_size=2), *signals])

    assert played.commands == ((10.0, ev.MarkInterrupted("SIGTERM")),)


def test_the_last_attempt_speaks_for_a_rank_also_where_it_moved() -> None:
    """Attempt 0: rank 1 dies. After the restart the two nodes have changed their ranks."""
    near, far = ev.Incarnation(0, 0, 1), ev.Incarnation(1, 0, 1)
    script: list[TimedEvent] = [
        *two_nodes_up(),
        (10.0, ev.RankExited(FAR)),
        (10.0, ev.RankDropped(FAR)),
        *finished(A, at_s=10.1),
        (12.0, ev.RankJoined(near, place(1, 2, 1))),
        (12.0, ev.RankJoined(far, place(0, 2, 1))),
        *finished(far, at_s=20.0),
        (20.0, ev.RankDropped(near)),
        node_ended(at_s=20.1, index=1),
        node_ended(ending(near, place(1, 2, 1), is_marker_sent=False, why="killed by SIGSEGV"), at_s=20.2, exit_code=1),
    ]
    played = play(TWO_NODES, script)

    assert played.sealed[1].finished == (0,)
    assert played.sealed[1].missing == (ev.RankMissing(rank=1, incarnation=near, why="killed by SIGSEGV"),)


def test_the_world_is_as_large_as_the_last_attempts_say() -> None:
    elastic = CoreSettings(nnodes=1, nproc_per_node=1)
    grown = (ev.Incarnation(0, 0, 1), ev.Incarnation(1, 0, 0))
    script: list[TimedEvent] = [
        node_joined(0, local_world_size=1),
        (1.0, ev.RankJoined(A, place(0, 1))),
        (5.0, ev.RankDropped(A)),
        node_joined(1, at_s=6.0, local_world_size=1),
        *[(7.0, ev.RankJoined(incarnation, place(rank, 2, 1))) for rank, incarnation in enumerate(grown)],
        *finished(*grown, at_s=20.0),
        node_ended(at_s=20.0, index=0),
        node_ended(at_s=20.0, index=1),
    ]
    played = play(elastic, script)

    assert played.sealed[1].finished == (0, 1)
    assert played.sealed[1].reason == "all_finished"


def test_a_node_that_comes_back_within_its_grace_was_never_lost() -> None:
    script = [*two_nodes_up(), (20.0, ev.NodeLost(0)), (24.0, ev.NodeJoined(0, True, 1))]

    assert play(TWO_NODES, script).commands == ()


def test_warnings_name_the_nodes_that_said_nothing() -> None:
    played = play(TWO_NODES, [*two_nodes_up(), (20.0, ev.NodeLost(1)), node_ended(at_s=30.0)])

    assert [c for _, c in played.of(ev.WarnOnce)] == [ev.WarnOnce("node 1's launcher was lost")]


def test_what_a_node_says_after_the_end_of_training_is_in_the_last_verdict() -> None:
    late = node_ended(NODE_1_END, at_s=40.5, index=1, exit_code=9)
    played: Played = play(TWO_NODES, [*two_nodes_up(), node_ended(NODE_0_END, at_s=30.0), late])

    assert played.ended[1].verdict.status == "completed"
    assert played.sealed[1].verdict.status == "failed"
