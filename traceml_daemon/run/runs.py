"""The runs of one daemon: which one a peer means, whether it belongs, and the opening of a run."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
from typing import Final

from traceml_client.protocol import messages
from traceml_client.protocol.errors import ConfigError, StoreError
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_client.protocol.manifest import LeaseHolder, wall_ns
from traceml_client.protocol.messages import NUMBER_ME, NodeHello, RankHello
from traceml_client.protocol.proof import is_proven
from traceml_daemon.clock import Clock
from traceml_daemon.config import RunConfig, ServeConfig, check_run_name
from traceml_daemon.core import events as ev
from traceml_daemon.errors import CannotStart, NotAdmitted
from traceml_daemon.own_faults import OwnFaults
from traceml_daemon.peers.connection import Connection, Peer
from traceml_daemon.peers.rejections import Rejections
from traceml_daemon.run.run_dirs import make_run_dir, new_run_name
from traceml_daemon.run.session import Session
from traceml_daemon.storage.no_history import NoHistory
from traceml_daemon.storage.store import Sink, Store

_MAX_RUN_TEXT: Final = 255


class Runs:
    """The live runs. This class takes peers into runs that are open; `ServedRuns` also opens them on demand."""

    def __init__(self, *, token: str, clock: Clock, holder: LeaseHolder, rejections: Rejections) -> None:
        self.sessions: dict[str, Session] = {}
        """By run id."""
        self.is_token_offered = False
        """Whether the one run that is served offers its token, see `RunConfig`."""
        self._token = token
        self._clock = clock
        self._holder = holder
        self._rejections = rejections
        self._loop_faults = OwnFaults("a callback of the event loop")
        asyncio.get_running_loop().set_exception_handler(self._loop_faults.count_of_loop)

    async def open(self, config: RunConfig) -> Session:
        """Open a run's database and write its first manifest.

        Raises:
            CannotStart: the database is not to be had; one line that names it.
        """
        store: Sink
        if config.has_history:
            try:
                store = await Store.open(config.run_dir / DATABASE_FILE)
            except StoreError as error:
                raise CannotStart(str(error)) from None
        else:
            store = NoHistory()
        session = Session(
            config, store, self._clock, holder=self._holder, rejections=self._rejections, loop_faults=self._loop_faults
        )
        try:
            session.start()
        except StoreError as error:
            await session.close()
            raise CannotStart(f"{config.run_dir / DATABASE_FILE}: {error}") from None
        self.sessions[config.run_id] = session
        return session

    async def admit(self, hello: RankHello | NodeHello, nonce: bytes, connection: Connection) -> Peer:
        """As `server.Door`: nothing is opened or told to somebody who has not proven that he knows the token."""
        has_proven = is_proven(self._token, nonce, hello.proof, *_claims(hello))
        is_excused = self.is_token_offered and not hello.proof
        if len(hello.run) > _MAX_RUN_TEXT or not (has_proven or is_excused):
            raise NotAdmitted(messages.BAD_TOKEN, "the proof does not fit the run's token")
        session = await self.session_for(hello)
        if isinstance(hello, RankHello):
            return session.admit_rank(hello, connection, has_proven=has_proven)
        return session.admit_node(hello, connection, has_proven=has_proven)

    async def session_for(self, hello: RankHello | NodeHello) -> Session:
        """The run that is meant. Raises NotAdmitted."""
        session = self.find(hello.run)
        if session is None:
            raise NotAdmitted(messages.WRONG_RUN, "another run is served here")
        return session

    def find(self, run: str) -> Session | None:
        """A live run by its id or name; the only one where none is named."""
        if not run and len(self.sessions) == 1:
            return next(iter(self.sessions.values()))
        session = self.sessions.get(run)
        if session is not None:
            return session
        return next((session for session in self.sessions.values() if run and run in session.config.names), None)

    def stop(self) -> None:
        """The daemon is told to stop: finalize what is there."""
        for session in tuple(self.sessions.values()):
            session.apply(ev.StopRequested())

    async def close(self) -> None:
        """Close every run, wherever it stands. Legal twice."""
        for session in tuple(self.sessions.values()):
            await session.close()


def _claims(hello: RankHello | NodeHello) -> tuple[str | int, ...]:
    """What a proof is made over; see `messages`."""
    if isinstance(hello, RankHello):
        return "rank", hello.run, hello.node_index, hello.local_rank, hello.attempt
    return "node", hello.run, hello.node_rank


MAX_LIVE_RUNS: Final = 64
MAX_REMEMBERED: Final = 1024
"""Finalized runs whose late peers are told so; those of older ones hear that another run is served here."""

_log = logging.getLogger("traceml_daemon")


class ServedRuns(Runs):
    """Runs by name. A peer without one joins the daemon's own run."""

    def __init__(self, config: ServeConfig, *, clock: Clock, holder: LeaseHolder, rejections: Rejections) -> None:
        super().__init__(token=config.token, clock=clock, holder=holder, rejections=rejections)
        self._config = config
        self._default_name = config.run_name
        self._is_stopping = False
        self._opening = asyncio.Lock()
        self._ended: dict[str, None] = {}
        """Ids and names of finalized runs, oldest first."""
        self._watchers: set[asyncio.Task[None]] = set()

    async def open_default(self) -> Session:
        """The run that `--run-name` names, so that a name that is taken is told at the start.

        Raises:
            ConfigError: the name is taken.
            CannotStart: its database is not to be had.
        """
        assert self._default_name is not None
        return await self._open(self._default_name, nnodes=0, nproc_per_node=0, is_direct=True)

    async def session_for(self, hello: RankHello | NodeHello) -> Session:
        async with self._opening:
            session = self.find(hello.run)
            if session is not None:
                return session
            if hello.run in self._ended and hello.run:
                raise NotAdmitted(messages.RUN_ENDED, f"run {hello.run} is over")
            if isinstance(hello, RankHello) and hello.node_index != NUMBER_ME:
                raise NotAdmitted(messages.WRONG_RUN, "no such run is served here")
            return await self._open_for(hello)

    def find(self, run: str) -> Session | None:
        """A peer without a run's name means the daemon's own run, or the next one if that is over."""
        name = run or self._default_name
        session = super().find(name) if name else None
        return None if session is not None and not run and session.core.phase == "sealed" else session

    async def stop_and_wait(self) -> None:
        """Finalize what is there; open nothing new."""
        self._is_stopping = True
        self.stop()
        while self._watchers:
            await asyncio.wait(self._watchers)

    async def close(self) -> None:
        for watcher in tuple(self._watchers):
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await super().close()

    async def _open_for(self, hello: RankHello | NodeHello) -> Session:
        if self._is_stopping:
            raise NotAdmitted(messages.RUN_ENDED, "the aggregator is about to stop")
        if len(self.sessions) >= MAX_LIVE_RUNS:
            raise NotAdmitted(messages.TOO_MANY, "the aggregator serves too many runs already")
        try:
            name, is_direct = self._name_for(hello.run), isinstance(hello, RankHello)
            nnodes, nproc = (max(1, hello.nnodes), hello.local_world_size) if isinstance(hello, NodeHello) else (0, 0)
            return await self._open(name, nnodes=nnodes, nproc_per_node=nproc, is_direct=is_direct)
        except (ConfigError, CannotStart) as error:
            raise NotAdmitted(messages.RUN_ENDED, str(error)) from None

    def _name_for(self, run: str) -> str:
        if run:
            return check_run_name(run, source="the peer's run name")
        self._default_name = new_run_name()
        return self._default_name

    async def _open(self, run_name: str, *, nnodes: int, nproc_per_node: int, is_direct: bool) -> Session:
        config = self._config
        folder = await asyncio.get_running_loop().run_in_executor(None, make_run_dir, config.logs_dir, run_name)
        before = folder.left_behind
        session = await self.open(
            RunConfig(
                run_name=run_name,
                run_id=secrets.token_hex(16) if before is None else before.run_id,
                run_dir=folder.path,
                token=config.token,
                nnodes=nnodes or config.nnodes,
                nproc_per_node=nproc_per_node or config.nproc_per_node,
                finalize_timeout_s=config.finalize_timeout_s,
                settle_s=config.settle_s,
                is_direct=is_direct,
                created_ns=self._clock.wall_ns() if before is None else wall_ns(before.created_at),
            )
        )
        watcher = asyncio.get_running_loop().create_task(self._forget(session))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return session

    async def _forget(self, session: Session) -> None:
        """Wait for the run's last file, then let go of it. A run without a name of its own is followed by another."""
        await session.finalized
        for key in (session.config.run_id, session.config.run_name):
            self._ended[key] = None
        while len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]
        if self._default_name == session.config.run_name:
            self._default_name = None
        await session.close()
        del self.sessions[session.config.run_id]  # last: a daemon that closes meanwhile closes it for us
        if not self.sessions:
            # Its parts point at one another, and the collector of a quiet daemon comes by every few weeks.
            asyncio.get_running_loop().call_soon(gc.collect)
