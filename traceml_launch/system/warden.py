"""A small child of the launcher that does what the launcher cannot do itself.

* It is a member of torchrun's process group and reports the signals that a *terminal* sends to that group, so that a
  Ctrl-C counts as one to the launcher, while `kill` on torchrun does not.
* If the launcher is killed, it sees to it that nothing of the run stays behind: torchrun gets SIGTERM, once, and its
  time to end, then it and what carries the run's nonce are ended. The daemon is spared: it finalizes and exits by
  itself.

It is forked before any thread or event loop exists, holds no descriptor but its two pipes, and never touches training
while the launcher lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from traceml_launch.system import pidfds, prctl, processes
from traceml_launch.system.leftovers import Leftovers

TERMINAL_SIGNALS: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP)
_PARENT_GONE: Final = signal.SIGUSR1
_SI_KERNEL: Final = 0x80
"""`si_code` of what a terminal sends; `kill` has 0, so its signals are told apart."""
_ORDER_BYTES: Final = 8192
_LOOK_AGAIN_S: Final = 0.2


class Watch(msgspec.Struct, frozen=True):
    """What the warden shall watch, once torchrun runs."""

    torchrun_pid: int
    nonce: str
    daemon_pid: int
    """Spared: it finalizes the run and exits by itself."""
    grace_s: float
    """What torchrun may take to end after the launcher's death."""
    linger_s: float
    socket_path: str
    """Of the hand-over, in a folder of its own: removed if the launcher cannot do it any more."""


@dataclass(slots=True)
class Warden:
    """The launcher's end."""

    pid: int
    report_fd: int
    """Readable: a byte for each terminal signal. At its end: the warden is gone."""
    _order_fd: int
    _is_watching: bool = False

    @classmethod
    def start(cls) -> Warden:
        """Fork it. Call before any thread or event loop exists. Raises OSError."""
        order_read, order_write = os.pipe()
        report_read, report_write = os.pipe()
        launcher_pid = os.getpid()
        blocked = {*TERMINAL_SIGNALS, signal.SIGTERM, _PARENT_GONE}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        pid = os.fork()
        if pid == 0:
            _run_child(launcher_pid, order_read, report_write)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(order_read)
        os.close(report_write)
        os.set_blocking(report_read, False)
        return cls(pid, report_read, order_write)

    def order(self, watch: Watch) -> None:
        """What to watch. Called in the process that is about to become torchrun. Never raises."""
        with contextlib.suppress(OSError):
            os.write(self._order_fd, msgspec.json.encode(watch))

    def wait_until_joined(self) -> None:
        """Returns when it is a member of torchrun's group, or gone."""
        self._is_watching = True
        with contextlib.suppress(OSError):
            os.set_blocking(self.report_fd, True)
            os.read(self.report_fd, 1)
            os.set_blocking(self.report_fd, False)

    def spare(self, pid: int) -> None:
        """A new daemon of the run: it finalizes by itself too. Before it has its order this is not needed."""
        if self._is_watching:
            with contextlib.suppress(OSError):
                os.write(self._order_fd, b"%d\n" % pid)

    def dismiss(self) -> None:
        """End and reap it; its work is done. Legal twice."""
        if self._order_fd < 0:
            return
        os.close(self._order_fd)
        self._order_fd = -1
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self.report_fd)


def _run_child(launcher_pid: int, order_fd: int, report_fd: int) -> NoReturn:
    """Never returns into the launcher's code, whatever happens."""
    try:
        prctl.die_with_parent(launcher_pid, _PARENT_GONE)
        _close_other_fds(order_fd, report_fd)
        order = os.read(order_fd, _ORDER_BYTES)
        if order:
            watch = msgspec.json.decode(order, type=Watch)
            torchrun_fd = pidfds.open_pidfd(watch.torchrun_pid)
            with contextlib.suppress(OSError):
                os.setpgid(0, watch.torchrun_pid)
            os.write(report_fd, b"\0")
            _report_until_parent_is_gone(launcher_pid, report_fd)
            _end_run(watch, torchrun_fd, daemons={watch.daemon_pid, *_later_daemons(order_fd)})
            _remove_socket(watch.socket_path)
    finally:
        os._exit(0)


def _close_other_fds(*kept: int) -> None:
    """Nobody may wait for the end of a pipe or terminal because we hold it."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _report_until_parent_is_gone(launcher_pid: int, report_fd: int) -> None:
    while os.getppid() == launcher_pid:
        info = signal.sigwaitinfo({*TERMINAL_SIGNALS, signal.SIGTERM, _PARENT_GONE})
        if info.si_code == _SI_KERNEL and info.si_signo in TERMINAL_SIGNALS:
            with contextlib.suppress(OSError):
                os.write(report_fd, bytes([info.si_signo]))


def _later_daemons(order_fd: int) -> set[int]:
    """The pids that the launcher told after its order: of daemons that it started in place of dead ones."""
    os.set_blocking(order_fd, False)
    with contextlib.suppress(BlockingIOError):
        return {int(pid) for pid in os.read(order_fd, _ORDER_BYTES).split()}
    return set()


def _end_run(watch: Watch, torchrun_fd: int | None, *, daemons: set[int]) -> None:
    """The launcher is gone: torchrun is to end as by SIGTERM, in its time; then end what is left of the run."""
    start_s = time.monotonic()
    if torchrun_fd is not None:
        pidfds.send_signal(torchrun_fd, signal.SIGTERM)
    own = processes.read_stat(watch.torchrun_pid)
    attached = {own.session if own else 0, *processes.children_of(watch.torchrun_pid)}
    if torchrun_fd is not None and not pidfds.wait_gone_blocking(torchrun_fd, timeout_s=watch.grace_s):
        pidfds.send_signal(torchrun_fd, signal.SIGKILL)
    spared = {os.getpid(), *daemons}
    leftovers = Leftovers(
        attached_sessions=attached,
        linger_until_s=start_s + watch.linger_s,
        command_of=processes.command_of,
    )
    while True:
        now_s = time.monotonic()
        for stat, number in leftovers.found(processes.of_run(watch.nonce, spared=spared), now_s=now_s):
            processes.signal_process(stat.pid, stat.start_ticks, number)
        if not leftovers.has_any(now_s=now_s):
            return
        time.sleep(_LOOK_AGAIN_S)


def _remove_socket(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
