"""Write, acknowledge, crash, reopen, in any order: what was acknowledged is there once, what was not is sent again.

A crash is what SIGKILL leaves: the bytes of the database's files at that instant. A new daemon opens a copy of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.sim_node import SimNode
from tests.harness.sim_rank import SimRank
from tests.harness.until import until

NUM_RANKS = 2
LARGEST = 60


class DaemonUnderCrashes(RuleBasedStateMachine):
    """Two ranks that remember nothing but how many steps they made, as their recorders would."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="traceml-crash-"))
        self.runner = asyncio.Runner()
        self.num_crashes = 0
        self.made = [0] * NUM_RANKS
        self.most_acked = [0] * NUM_RANKS
        self.ranks: list[SimRank] = []
        self.do(self._start())

    def do(self, work: object) -> None:
        self.runner.run(work)  # type: ignore[arg-type]

    # --- what may happen ------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, NUM_RANKS - 1), count=st.integers(1, LARGEST), per_frame=st.integers(1, LARGEST))
    def make_and_send(self, number: int, count: int, per_frame: int) -> None:
        self.made[number] += count
        self.do(self._send(number, per_frame))

    @rule(number=st.integers(0, NUM_RANKS - 1), back=st.integers(1, LARGEST), count=st.integers(1, LARGEST))
    def send_again(self, number: int, back: int, count: int) -> None:
        """Records that were sent before: some stored, some on their way."""
        sent = self.ranks[number].next_seq[0]
        first = max(0, sent - back)
        if sent:
            self.do(self.ranks[number].send_records(first, min(count, sent - first)))

    @rule(number=st.integers(0, NUM_RANKS - 1))
    def wait_for_acknowledgement(self, number: int) -> None:
        self.do(self.ranks[number].wait_acked())

    @rule(number=st.integers(0, NUM_RANKS - 1))
    def reconnect(self, number: int) -> None:
        self.do(self._reconnect(number))

    @rule()
    def crash(self) -> None:
        self.do(self._crash())

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def what_was_acknowledged_is_stored(self) -> None:
        for number, rank in enumerate(self.ranks):
            self.most_acked[number] = max(self.most_acked[number], rank.acked[0])
            stored = spans(self.database, number)
            assert is_gapless(stored), f"a gap, or a record twice: {stored}"
            assert (stored[-1][1] if stored else 0) >= self.most_acked[number]

    def teardown(self) -> None:
        self.do(self._finish())
        for number in range(NUM_RANKS):
            stored = spans(self.database, number)
            assert is_gapless(stored)
            assert (stored[-1][1] if stored else 0) == self.made[number]
        self.do(self._stop())
        self.runner.close()
        shutil.rmtree(self.folder)

    # --- how ------------------------------------------------------------------------------------------------------

    @property
    def database(self) -> Path:
        return self.daemon.database

    async def _start(self) -> None:
        run_dir = self.folder / f"life_{self.num_crashes}"
        self._serving = run_daemon(run_config(run_dir, nproc_per_node=NUM_RANKS, token=""))
        self.daemon: RunningDaemon = await self._serving.__aenter__()
        self.node = SimNode(port=self.daemon.port, run="run-id-1", local_world_size=NUM_RANKS)
        await self.node.join()
        before, self.ranks = self.ranks, []
        for number in range(NUM_RANKS):
            rank = SimRank(port=self.daemon.port, rank=number, world_size=NUM_RANKS, pid=100 + number)
            self.ranks.append(await self.node.start_rank(rank))
            assert (await rank.join()).next_seq[0] >= (before[number].acked[0] if before else 0)
            rank.acked[0] = rank.next_seq[0]

    async def _send(self, number: int, per_frame: int) -> None:
        rank = self.ranks[number]
        await rank.send_steps(self.made[number] - rank.next_seq[0], per_frame=per_frame)

    async def _reconnect(self, number: int) -> None:
        rank = self.ranks[number]
        await rank.hang_up()
        await rank.rejoin()

    async def _crash(self) -> None:
        """Copy the files as they are, let the old daemon go, and open the copy."""
        life = self.folder / f"life_{self.num_crashes + 1}"
        life.mkdir()
        for path in self.daemon.run_dir.glob("telemetry.sqlite*"):
            if not path.name.endswith("-shm"):  # made anew from the log by whoever opens it first
                shutil.copyfile(path, life / path.name)
        await self._stop()
        self.num_crashes += 1
        await self._start()

    async def _stop(self) -> None:
        for peer in (self.node, *self.ranks):
            await peer.hang_up()
        await self._serving.__aexit__(None, None, None)

    async def _finish(self) -> None:
        """Everything that was made is sent and stored."""
        for number, rank in enumerate(self.ranks):
            await self._send(number, LARGEST)
            await rank.wait_acked()
        await until(lambda: self.daemon.session.store.is_idle, "all is stored")


def spans(database: Path, rank: int) -> list[tuple[int, int]]:
    """(first, end) of each stored chunk of a rank's steps."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(
            "SELECT first_seq, first_seq + count FROM chunk JOIN incarnation ON incarnation.id = incarnation_id"
            " WHERE stream = 0 AND rank = ? ORDER BY first_seq",
            (rank,),
        ).fetchall()


def is_gapless(stored: list[tuple[int, int]]) -> bool:
    return [first for first, _ in stored] == [0, *(end for _, end in stored)][: len(stored)]


TestDaemonUnderCrashes = DaemonUnderCrashes.TestCase
TestDaemonUnderCrashes.settings = settings(max_examples=12, stateful_step_count=15, deadline=None)
