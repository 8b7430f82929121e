"""torchrun as a child of the launcher: its own process group, the user's standard input, and SIGTERM if we die."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from traceml_launch import pidfds, prctl


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
    ) -> None:
        """Start it. From the main thread only: the kernel sends the parent-death signal when the *thread* ends.

        Null descriptors: it inherits ours. Raises OSError if there is no such program.
        """
        launcher_pid = os.getpid()
        self._process = subprocess.Popen(
            argv,
            env=environ,
            stdout=stdout_fd,
            stderr=stderr_fd,
            cwd=cwd,
            process_group=0,
            # The one way to set the parent-death signal without a program between us and torchrun.
            preexec_fn=lambda: _prepare_child(launcher_pid),
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


def _prepare_child(launcher_pid: int) -> None:
    """Between fork and exec. The launcher ignores SIGTTOU (it writes from the background); torchrun shall not."""
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    prctl.die_with_parent(launcher_pid, signal.SIGTERM)
