"""The runs of one daemon: which one a peer means, whether it belongs, and the opening of a run."""

from __future__ import annotations

from typing import Final

from traceml_client.protocol import messages
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.launch import DATABASE_FILE
from traceml_client.protocol.manifest import LeaseHolder
from traceml_client.protocol.messages import NodeHello, RankHello
from traceml_client.protocol.proof import is_proven
from traceml_daemon.clock import Clock
from traceml_daemon.config import RunConfig
from traceml_daemon.core import events as ev
from traceml_daemon.errors import CannotStart, NotAdmitted
from traceml_daemon.peers.connection import Connection, Peer
from traceml_daemon.peers.rejections import Rejections
from traceml_daemon.run.session import Session
from traceml_daemon.storage.no_history import NoHistory
from traceml_daemon.storage.store import Sink, Store

_MAX_RUN_TEXT: Final = 255


class Runs:
    """The live runs. This class takes peers into runs that are open; `served_runs` also opens them on demand."""

    def __init__(self, *, token: str, clock: Clock, holder: LeaseHolder, rejections: Rejections) -> None:
        self.sessions: dict[str, Session] = {}
        """By run id."""
        self.is_token_offered = False
        """Whether the one run that is served offers its token, see `RunConfig`."""
        self._token = token
        self._clock = clock
        self._holder = holder
        self._rejections = rejections

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
        session = Session(config, store, self._clock, holder=self._holder, rejections=self._rejections)
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
