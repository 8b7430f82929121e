"""torchrun from its start to its end, the signals in between, and the end of workers that it left behind."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

from traceml_client.protocol import messages
from traceml_launch.aggregator.telemetry import Telemetry
from traceml_launch.output.foreground import Foreground
from traceml_launch.ranks.worker_tracker import WorkerTracker
from traceml_launch.ranks.workers import WorkerTable
from traceml_launch.stop_plan import StopPlan
from traceml_launch.system import pidfds
from traceml_launch.system.child import Child

REAPED_S: Final = 0.2
"""torchrun reaps its workers before it exits; their descriptors tell it a moment later at the most."""
KILLED_S: Final = 3.0
"""A worker that outlives SIGKILL for this long sits in the kernel; nobody can end it."""


class Training:
    """One torchrun. The signal handlers may be called at any time, also before its start and after its end."""

    def __init__(
        self,
        *,
        plan: StopPlan,
        workers: WorkerTable,
        telemetry: Telemetry,
        foreground: Foreground,
        is_known_child: Callable[[int], bool],
        on_hurry: Callable[[], None],
    ) -> None:
        """`on_hurry` is called for signals after training's end: what comes then shall be short."""
        self.plan = plan
        self.torchrun: Child | None = None
        self.tracker: WorkerTracker | None = None
        self.return_code: int | None = None
        self.interrupted_by: str | None = None
        """The first signal, if it came before training's end."""
        self.stopped = asyncio.Event()
        self._workers = workers
        self._telemetry = telemetry
        self._foreground = foreground
        self._is_known_child = is_known_child
        self._on_hurry = on_hurry
        self._loop = asyncio.get_running_loop()
        self._kill_timer: asyncio.TimerHandle | None = None

    def began(self, torchrun: Child) -> None:
        """torchrun runs."""
        self.torchrun = torchrun
        self.tracker = WorkerTracker(torchrun.pid, is_known=self._is_known_child)
        self._telemetry.link.send(messages.TrainingStarted(started_ns=time.time_ns(), pid=torchrun.pid))

    async def wait(self) -> int:
        """Wait for torchrun's end: its return code, negative for a signal."""
        assert self.torchrun is not None
        return_code = await self.torchrun.wait()
        assert return_code is not None
        self.return_code = return_code
        self._foreground.take_back()
        return return_code

    async def end_workers(self) -> None:
        """torchrun is gone: so are its workers, or they are asked to end, given their time, and killed."""
        if await self._are_workers_gone(within_s=REAPED_S):
            return
        now_s = self._loop.time()
        kill_at_s = self.plan.kill_at_s()
        if kill_at_s is None:
            kill_at_s = now_s + self.plan.torchrun_grace_s()
        if now_s < kill_at_s:
            self._signal_workers(signal.SIGTERM)
            await self._wait_until(kill_at_s)
        if not await self._are_workers_gone(within_s=0):
            self._signal_workers(signal.SIGKILL)
            await self._are_workers_gone(within_s=KILLED_S)

    def on_stop(self, number: signal.Signals, is_delivered: bool) -> None:
        """A signal to the launcher; `is_delivered`: the terminal has sent it to torchrun's group itself."""
        meaning = self.plan.received(number, now_s=self._loop.time())
        if meaning == "repeated":
            return
        self.stopped.set()
        if self.return_code is not None:
            self._on_hurry()
            self._signal_workers(signal.SIGKILL)
            return
        if meaning == "first":
            self._pass_on(number, is_delivered)
        self._arm_kill()

    def _pass_on(self, number: signal.Signals, is_delivered: bool) -> None:
        self.interrupted_by = number.name
        at_ns = time.time_ns()  # before anybody can answer it
        if self.tracker is not None:
            self.tracker.look()
        if not is_delivered:
            self._signal_torchrun(number)
        self._telemetry.link.send(messages.Interrupted(signal=number.name, at_ns=at_ns))

    def on_suspend(self, is_from_terminal: bool) -> None:
        """Ctrl-Z: stop everything that trains, then ourselves; go on when we are resumed."""
        if self.tracker is not None:
            self.tracker.look()
        self._signal_torchrun(signal.SIGSTOP)
        self._signal_workers(signal.SIGSTOP)
        self._foreground.stop_ourselves(is_from_terminal=is_from_terminal)
        self._signal_torchrun(signal.SIGCONT)
        self._signal_workers(signal.SIGCONT)

    async def close(self) -> None:
        """Legal twice."""
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if self.tracker is not None:
            await self.tracker.close()
        if self.torchrun is not None and self.return_code is not None:
            self.torchrun.close()

    def _arm_kill(self) -> None:
        kill_at_s = self.plan.kill_at_s()
        if kill_at_s is None:
            return
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._kill_timer = self._loop.call_at(kill_at_s, self._kill)

    def _kill(self) -> None:
        """Workers first: torchrun has no time left to report on them anyway."""
        if self.tracker is not None and self.return_code is None:
            self.tracker.look()
        self._signal_workers(signal.SIGKILL)
        self._signal_torchrun(signal.SIGKILL)

    def _signal_torchrun(self, number: signal.Signals) -> None:
        if self.torchrun is not None and self.return_code is None:
            self.torchrun.send_signal(number)

    def _signal_workers(self, number: signal.Signals) -> None:
        self._workers.signal_living(number)
        for pidfd in self._bare_workers().values():
            pidfds.send_signal(pidfd, number)

    def _bare_workers(self) -> dict[int, int]:
        """Children of torchrun that took nothing from us, and live."""
        known = self._workers.pids()
        living = self.tracker.living() if self.tracker is not None else {}
        return {pid: pidfd for pid, pidfd in living.items() if pid not in known and not pidfds.is_gone(pidfd)}

    async def _are_workers_gone(self, *, within_s: float) -> bool:
        until_s = self._loop.time() + within_s
        is_gone = await self._workers.wait_all_gone(timeout_s=within_s)
        for pidfd in self._bare_workers().values():
            is_gone &= await pidfds.wait_gone(pidfd, timeout_s=max(0.0, until_s - self._loop.time()))
        return is_gone

    async def _wait_until(self, kill_at_s: float) -> None:
        """Until the workers are gone; a second signal brings the end forward."""
        while not await self._are_workers_gone(within_s=min(0.2, max(0.0, kill_at_s - self._loop.time()))):
            kill_at_s = min(kill_at_s, self.plan.kill_at_s() or kill_at_s)
            if self._loop.time() >= kill_at_s:
                return
