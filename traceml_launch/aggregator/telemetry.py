"""The daemon as this launcher sees it: its own child, one elsewhere, or none. It never has a say in training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from traceml_client.protocol import messages
from traceml_client.protocol.errors import ProtocolError, Refused
from traceml_client.protocol.launch import DaemonFailed
from traceml_launch.aggregator.daemon_link import DaemonLink, Hello
from traceml_launch.aggregator.kept_daemon import KeptDaemon, Start
from traceml_launch.aggregator.own_daemon import OwnDaemon
from traceml_launch.waiting import unless

State = Literal["starting", "serving", "finished", "disabled", "unreachable", "died", "unresponsive", "late"]
"""`late`: the budget was over before the reports were written."""

EXIT_S: Final = 5.0
"""From the written report to the daemon's exit."""


class Telemetry:
    """One object for all roles. `state` only ever leaves `starting` and `serving`, never returns."""

    def __init__(
        self,
        *,
        token: Callable[[], str],
        hello: Hello,
        on_salvage_ack: Callable[[messages.SalvageAck], None],
        on_problem: Callable[[str], None],
        trust: tuple[str, str] | None = None,
    ) -> None:
        """As for `DaemonLink`. Raises ConfigError."""
        self.state: State = "starting"
        self.link = DaemonLink(
            token=token, hello=hello, on_salvage_ack=on_salvage_ack, on_notice=on_problem, trust=trust
        )
        self.link.welcome.add_done_callback(self._on_welcome)
        self.started = asyncio.Event()
        """Set once it is known where the daemon is, or that there is none."""
        self.ended = asyncio.Event()
        """Set once our own daemon is gone for good, for whatever reason."""
        self._on_problem = on_problem
        self._own: KeptDaemon | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        return self.state in ("starting", "serving")

    @property
    def process(self) -> OwnDaemon | None:
        """Our own daemon's, the last one that was started."""
        return self._own.process if self._own is not None else None

    @property
    def exit_code(self) -> int | None:
        """Of our own daemon, once it is reaped; negative for a signal."""
        return self._own.exit_code if self._own is not None else None

    def own(self, start: Start, *, host: str) -> None:
        """Start our own daemon, wait for its ready line, then keep it and a connection to it. Raises OSError."""
        self._own = KeptDaemon(start, on_problem=self._on_problem)
        self._watch = asyncio.get_running_loop().create_task(self._watch_own(self._own, host))

    def join(self, *, host: str, port: int) -> None:
        """Use a daemon that somebody else started, or will start."""
        self.link.connect(host, port)
        self.state = "serving"
        self.started.set()

    def fail(self, why: str) -> None:
        """It cannot be had at all."""
        self._on_problem(f"training runs without telemetry: {why}")
        self.give_up("unreachable")

    async def welcome(self, *, timeout_s: float) -> messages.Welcome | None:
        """The daemon's welcome; null if it takes longer or never comes. Raises Refused and ProtocolError."""
        return await unless(asyncio.shield(self.link.welcome), self.ended, timeout_s=timeout_s)

    async def finalized(self, *, timeout_s: float) -> messages.RunFinalized | None:
        """The reports are written; null if that takes longer, or if our own daemon is gone before."""
        return await unless(asyncio.shield(self.link.finalized), self.ended, timeout_s=timeout_s)

    async def end_own(self, *, is_finalized: bool) -> None:
        """Reap our own daemon: it exits by itself after its reports; one that does not is ended."""
        if self._own is None:
            return
        if is_finalized:
            await unless(self.ended.wait(), timeout_s=EXIT_S)
        elif self.state == "serving":
            self.give_up("late")
        await self._own.end()
        if is_finalized:
            self.state = "finished"

    async def close(self) -> None:
        """Hang up and stop watching. Legal twice."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.link.close()
        if self._own is not None:
            self._own.close()

    async def _watch_own(self, own: KeptDaemon, host: str) -> None:
        answer = await own.first_answer()
        if isinstance(answer, DaemonFailed):
            self.fail(f"the aggregator did not start: {answer.error}")
            return
        self.join(host=host, port=answer.port)
        ending = await own.watch(self.link, port=answer.port)
        if ending == "finished":
            self.state = "finished"
        elif self.state == "serving":
            self._on_problem(f"the aggregator is given up (exit code {own.exit_code}); training goes on")
            self.give_up(ending)
        self.ended.set()

    def _on_welcome(self, welcome: asyncio.Future[messages.Welcome]) -> None:
        error = None if welcome.cancelled() else welcome.exception()
        if isinstance(error, (Refused, ProtocolError)):
            self._on_problem(f"training runs without telemetry of this launcher: {error}")

    def give_up(self, state: State) -> None:
        """There is none, or none any more."""
        self.state = state
        self.started.set()
        if self._own is None or state == "unreachable":
            self.ended.set()
