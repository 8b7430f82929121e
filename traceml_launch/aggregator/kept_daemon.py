"""The owner's own daemon, kept alive: watched, reaped, and started again after its death, a bounded number of times.

A daemon that is started again goes on with what its predecessor stored. It listens on the same port, so ranks and
launchers come back by themselves and send again what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final, Literal

from traceml_client.protocol.launch import DaemonFailed, DaemonReady
from traceml_launch.aggregator.daemon_link import DaemonLink
from traceml_launch.aggregator.own_daemon import OwnDaemon
from traceml_launch.waiting import unless

BACKOFF_S: Final = (0.1, 1.0, 3.0)
"""Before each new start of one run; ranks wait 5 s for a daemon before they count as suspect."""
LAST_WORDS_S: Final = 1.0
"""Between the daemon's exit and its last message on our socket."""
TERM_S: Final = 2.0

Start = Callable[[int], OwnDaemon]
"""(port) -> a started daemon; 0: the launch's own choice, else that port and no other. Raises OSError."""
Ending = Literal["finished", "died", "unresponsive"]


class KeptDaemon:
    """Belongs to the loop. One task calls `first_answer` and then `watch`; `end` may come at any time."""

    def __init__(self, start: Start, *, on_problem: Callable[[str], None]) -> None:
        """Start it; not waited for. Raises OSError."""
        self._start = start
        self._on_problem = on_problem
        self._is_wanted = True
        self._num_restarts = 0
        self.process = start(0)
        self.exit_code: int | None = None
        """Of the last process, once it is reaped; negative for a signal."""

    async def first_answer(self) -> DaemonReady | DaemonFailed:
        """Its ready line; one that is killed before it is started again."""
        answer = await self.process.ready()
        if isinstance(answer, DaemonReady):
            return answer
        self.exit_code = await self.process.wait(timeout_s=LAST_WORDS_S)
        if self.exit_code is None:
            self.exit_code = await self.process.end(signal.SIGTERM, timeout_s=TERM_S)
        elif self.exit_code < 0:
            return await self._start_again("was killed before it was ready", port=0) or answer
        return answer

    async def watch(self, link: DaemonLink, *, port: int) -> Ending:
        """Until it has done its work (`finished`), or is dead for good."""
        while True:
            ending = await self._ending(link)
            if ending == "finished":
                return ending
            if await self._start_again(_why(ending, self.exit_code), port=port) is None:
                return ending
            link.expect_answers()

    async def end(self) -> None:
        """Nobody needs it any more: it is not started again, and ended where it does not end by itself."""
        self._is_wanted = False
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.exit_code is None:
                self.exit_code = await self.process.end(number, timeout_s=TERM_S)

    def close(self) -> None:
        """Legal twice."""
        self.process.close()

    async def _ending(self, link: DaemonLink) -> Ending:
        """Wait for the end of this process, or bring it about where it is silent; reap it."""
        self.exit_code = await unless(self.process.wait(), link.unresponsive)
        ending: Ending = "died"
        if self.exit_code is None:
            ending = "unresponsive"
            await self.process.end(signal.SIGKILL, timeout_s=TERM_S)
            self.exit_code = await self.process.wait()
        if self.exit_code == 0:
            await asyncio.wait({link.finalized}, timeout=LAST_WORDS_S)
        return "finished" if link.finalized.done() else ending

    async def _start_again(self, why: str, *, port: int) -> DaemonReady | None:
        """Null where it was tried often enough, or is not wanted any more."""
        while self._num_restarts < len(BACKOFF_S) and self._is_wanted:
            pause_s = BACKOFF_S[self._num_restarts]
            self._num_restarts += 1
            count = f"{self._num_restarts} of {len(BACKOFF_S)}"
            self._on_problem(f"the aggregator {why}; it is started again ({count}), training goes on")
            await asyncio.sleep(pause_s)
            answer = await self._ready_again(port) if self._is_wanted else None
            if isinstance(answer, DaemonReady):
                return answer
            why = f"did not start: {answer.error}" if answer is not None else why
        return None

    async def _ready_again(self, port: int) -> DaemonReady | DaemonFailed:
        self.process.close()
        try:
            self.process = self._start(port)
        except OSError as error:
            return DaemonFailed(error=str(error.strerror))
        self.exit_code = None
        answer = await self.process.ready()
        if isinstance(answer, DaemonFailed):
            self.exit_code = await self.process.end(signal.SIGKILL, timeout_s=TERM_S)
        return answer


def _why(ending: Ending, exit_code: int | None) -> str:
    if ending == "unresponsive":
        return "did not answer for 10 s and was killed"
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended early with exit code {exit_code}"
