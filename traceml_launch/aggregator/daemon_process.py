"""The owner's own daemon as a child process: started, awaited by its ready line, killed if it is silent, reaped."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from traceml_client.protocol.launch import DaemonFailed, DaemonLaunch, DaemonReady
from traceml_launch.output.logfile import open_private
from traceml_launch.system import pidfds

READY_TIMEOUT_S: Final = 20.0
"""Far over a cold start on a busy node, and less than workers wait for what we give them."""
_MAX_READY_BYTES: Final = 64 * 1024


class DaemonProcess:
    """A started daemon, ready or not."""

    def __init__(
        self,
        argv_for: Callable[[int, int], Sequence[str]],
        order: DaemonLaunch,
        *,
        environ: Mapping[str, str],
        stderr_path: Path,
    ) -> None:
        """Start it in a session of its own, for it outlives us. Raises OSError.

        `argv_for`: (config descriptor, ready descriptor) -> command line.
        """
        config_fd = os.memfd_create("traceml-daemon-order", os.MFD_CLOEXEC)
        ready_read, ready_write = os.pipe()
        try:
            os.write(config_fd, msgspec.json.encode(order))
            os.lseek(config_fd, 0, os.SEEK_SET)
            with open_private(stderr_path) as diagnostics:
                self._process = subprocess.Popen(
                    argv_for(config_fd, ready_write),
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=diagnostics,
                    stderr=diagnostics,
                    pass_fds=(config_fd, ready_write),
                    start_new_session=True,
                )
        except BaseException:
            os.close(ready_read)
            raise
        finally:
            os.close(config_fd)
            os.close(ready_write)
        self._ready_fd = ready_read
        self.pid = self._process.pid
        pidfd = pidfds.open_pidfd(self.pid)
        assert pidfd is not None, "an unreaped child always has a pidfd"
        self.pidfd = pidfd

    async def ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> DaemonReady | DaemonFailed:
        """Its answer; a made-up failure where it ends or stays silent instead. Call once."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._ready_fd, "rb")
        )
        try:
            async with asyncio.timeout(timeout_s):
                line = await reader.readline()
        except TimeoutError:
            return DaemonFailed(error=f"it was not ready within {timeout_s:.0f} s")
        finally:
            transport.close()
        return _parse(line)

    async def wait(self, *, timeout_s: float | None = None) -> int | None:
        """Reap it: its return code, negative for a signal; null if it takes longer."""
        if not await pidfds.wait_gone(self.pidfd, timeout_s=timeout_s):
            return None
        return self._process.wait()

    async def end(self, number: int, *, timeout_s: float) -> int | None:
        """Signal it and reap it; null if even that takes longer."""
        pidfds.send_signal(self.pidfd, number)
        return await self.wait(timeout_s=timeout_s)

    def close(self) -> None:
        """Give its descriptor back. Legal twice."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _parse(line: bytes) -> DaemonReady | DaemonFailed:
    if not line:
        return DaemonFailed(error="it ended before it was ready")
    try:
        return msgspec.json.decode(line, type=DaemonReady)
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.json.decode(line, type=DaemonFailed)
    except msgspec.DecodeError:
        return DaemonFailed(error=f"it answered {line[:100]!r}")
