"""The launcher's ears: signals to itself, and the terminal's signals that its warden saw in torchrun's group."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final

STOPPING: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class SignalDesk:
    """Calls back from the loop.

    A hang-up that was ignored when we started stays ignored: that is what `nohup` is for. The others are heard all the
    same, as torchrun hears them: a job script starts its training with `&`, which ignores SIGINT, and sends it later.
    """

    def __init__(self, *, on_stop: Callable[[signal.Signals, bool], None], on_suspend: Callable[[bool], None]) -> None:
        """Install the handlers; from the main thread.

        Args:
            on_stop: (signal, whether the terminal has delivered it to torchrun already).
            on_suspend: (whether it came from the terminal).
        """
        self._loop = asyncio.get_running_loop()
        self._on_stop = on_stop
        self._on_suspend = on_suspend
        self._warden_fd = -1
        is_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._installed = [each for each in STOPPING if each != signal.SIGHUP or not is_nohup]
        for number in self._installed:
            self._loop.add_signal_handler(number, on_stop, number, False)
        if signal.getsignal(signal.SIGTSTP) != signal.SIG_IGN:
            self._loop.add_signal_handler(signal.SIGTSTP, on_suspend, False)
            self._installed.append(signal.SIGTSTP)

    def listen_to_warden(self, report_fd: int) -> None:
        """Each byte there is a terminal signal. The descriptor stays the caller's."""
        self._warden_fd = report_fd
        self._loop.add_reader(report_fd, self._on_report)

    def close(self) -> None:
        """Deaf from here on: the exit code is settled, and a late signal must not replace it. Legal twice."""
        for number in self._installed:
            self._loop.remove_signal_handler(number)
            if number in STOPPING:
                signal.signal(number, signal.SIG_IGN)
        self._installed = []
        self._leave_warden()

    def _on_report(self) -> None:
        try:
            data = os.read(self._warden_fd, 64)
        except BlockingIOError:
            return
        if not data:
            self._leave_warden()
        for byte in data:
            number = signal.Signals(byte)
            if number == signal.SIGTSTP:
                self._on_suspend(True)
            else:
                self._on_stop(number, True)

    def _leave_warden(self) -> None:
        if self._warden_fd >= 0:
            self._loop.remove_reader(self._warden_fd)
            self._warden_fd = -1
