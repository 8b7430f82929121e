"""A child process of ours: signalled and awaited by its descriptor, reaped by nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from traceml_launch.system import pidfds


class Child:
    """A started process."""

    def __init__(self, argv: Sequence[str], **options: Any) -> None:
        """Start it; `options` are those of `subprocess.Popen`. Raises OSError."""
        self._process = subprocess.Popen(argv, **options)
        self.pid = self._process.pid
        pidfd = pidfds.open_pidfd(self.pid)
        assert pidfd is not None, "an unreaped child always has a pidfd"
        self._pidfd = pidfd

    def send_signal(self, number: int) -> bool:
        """To this process alone; False if it is gone."""
        return pidfds.send_signal(self._pidfd, number)

    async def wait(self, *, timeout_s: float | None = None) -> int | None:
        """Reap it: its return code, negative for a signal; null if it takes longer."""
        if not await pidfds.wait_gone(self._pidfd, timeout_s=timeout_s):
            return None
        return self._process.wait()

    async def end(self, number: int, *, timeout_s: float) -> int | None:
        """Signal it and reap it; null if even that takes longer."""
        self.send_signal(number)
        return await self.wait(timeout_s=timeout_s)

    def close(self) -> None:
        """Give its descriptor back. Legal twice."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def start_torchrun(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    stdout_fd: int | None,
    stderr_fd: int | None,
    announce: Callable[[int], None],
) -> Child:
    """Start it in a process group of its own, with the user's standard input. Null descriptors: it inherits ours.

    No parent-death signal: the kernel sends it once for every thread of a killed launcher that is still there, and a
    second SIGTERM breaks torchrun's own shutdown. The warden sends one instead.

    Args:
        announce: called in the new process with its pid before it becomes torchrun, so that there is no instant in
            which it runs and the warden does not know of it.

    Raises:
        OSError: there is no such program.
    """

    def prepare() -> None:
        # The launcher ignores SIGTTOU (it writes from the background); torchrun shall not.
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        announce(os.getpid())

    return Child(argv, env=environ, stdout=stdout_fd, stderr=stderr_fd, process_group=0, preexec_fn=prepare)
