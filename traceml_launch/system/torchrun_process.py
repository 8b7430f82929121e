"""torchrun as a child of the launcher: its own process group, the user's standard input.

No parent-death signal: the kernel sends it once for every thread of a killed launcher that is still there, and a second
SIGTERM breaks torchrun's own shutdown. The warden sends one instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from traceml_launch.system import pidfds


class TorchrunProcess:
    """A running torchrun (or, in tests, anything that stands in for it)."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        stdout_fd: int | None = None,
        stderr_fd: int | None = None,
        cwd: Path | None = None,
        announce: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        """Start it. Null descriptors: it inherits ours.

        Args:
            announce: called in the new process with its pid before it becomes torchrun, so that there is no instant in
                which it runs and the warden does not know of it.

        Raises:
            OSError: there is no such program.
        """
        self._process = subprocess.Popen(
            argv,
            env=environ,
            stdout=stdout_fd,
            stderr=stderr_fd,
            cwd=cwd,
            process_group=0,
            preexec_fn=lambda: _prepare_child(announce),
        )
        self.pid = self._process.pid
        pidfd = pidfds.open_pidfd(self.pid)
        assert pidfd is not None, "an unreaped child always has a pidfd"
        self.pidfd = pidfd

    def send_signal(self, number: int) -> bool:
        """To torchrun alone; False if it is gone."""
        return pidfds.send_signal(self.pidfd, number)

    async def wait(self, *, timeout_s: float | None = None) -> int | None:
        """Its return code as `subprocess` gives it (negative: a signal); null if it takes longer than `timeout_s`."""
        if not await pidfds.wait_gone(self.pidfd, timeout_s=timeout_s):
            return None
        return self._process.wait()

    def close(self) -> None:
        """Give its descriptor back, once it has ended. Legal twice."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _prepare_child(announce: Callable[[int], None]) -> None:
    """Between fork and exec. The launcher ignores SIGTTOU (it writes from the background); torchrun shall not."""
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    announce(os.getpid())
