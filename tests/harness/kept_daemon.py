"""A supervised daemon that is killed and started again on the same port, as its owner does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

from tests.harness.daemon_process import DaemonProcess, supervised_daemon
from tests.harness.until import until
from traceml_client.protocol.launch import DaemonLaunch


@dataclass
class KeptDaemon:
    """What `kept_daemon` yields."""

    order: DaemonLaunch
    daemon: DaemonProcess
    stack: contextlib.AsyncExitStack
    num_kills: int = 0
    exit_codes: list[int] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.daemon.port

    async def kill(self) -> None:
        """SIGKILL, whatever it is doing, and the next one in its place; nothing if it has done its work already."""
        self.daemon.process.kill()
        if await self.daemon.exit_code() == 0:
            return
        self.exit_codes.append(await self.daemon.exit_code())
        self.num_kills += 1
        await self.stack.aclose()
        order = msgspec.structs.replace(self.order, port=self.port, is_port_required=True)
        self.daemon = await self.stack.enter_async_context(supervised_daemon(order))
        assert "error" not in self.daemon.ready, self.daemon.ready


@contextlib.asynccontextmanager
async def kept_daemon(order: DaemonLaunch) -> AsyncIterator[KeptDaemon]:
    async with contextlib.AsyncExitStack() as stack:
        yield KeptDaemon(order, await stack.enter_async_context(supervised_daemon(order)), stack)


async def kill_at(
    kept: KeptDaemon,
    progress: Callable[[], int],
    marks: list[int],
    pause: Callable[[], float],
    *,
    is_over: Callable[[], bool],
) -> None:
    """Kill it each time that `progress` has passed the next of `marks`, and a moment more of `pause()` seconds.

    Returns at the first mark that a run which is over has not reached.
    """
    for mark in sorted(marks):
        await until(lambda mark=mark: progress() >= mark or is_over(), f"{mark} records", within_s=600)  # type: ignore[misc]
        if progress() < mark:
            return
        await asyncio.sleep(pause())
        await kept.kill()
