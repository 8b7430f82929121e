"""What a service manager is told, in systemd's notify protocol: ready, alive, about to stop. Without one, nothing is.

A datagram each, on the socket that the environment names. The sign of life comes from the running loop itself, so a
loop that hangs is one that the manager restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

from traceml_client.protocol.environ import NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC

_SIGNS_PER_DEADLINE: Final = 3


class ServiceManager:
    """The one that started us, or nobody. No method raises or blocks."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = environ.get(NOTIFY_SOCKET, "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._interval_s = _deadline_s(environ) / _SIGNS_PER_DEADLINE
        self._timer: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None
        if name:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def say_ready(self, *, status: str) -> None:
        """Peers are taken from now on; and signs of life from now on, if they are wanted."""
        self._say("READY=1", f"MAINPID={os.getpid()}", f"STATUS={status}")
        if self._interval_s and self._socket is not None:
            self._live()

    def say_stopping(self, *, within_s: float) -> None:
        """The runs that are there are finalized, which may take so long."""
        self._say("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}", "STATUS=Finalizing")

    def close(self) -> None:
        """Legal twice."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _live(self) -> None:
        self._say("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._live)

    def _say(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)


def _deadline_s(environ: Mapping[str, str]) -> float:
    """Of the watchdog; 0 where none watches this process."""
    microseconds, pid = environ.get(WATCHDOG_USEC, ""), environ.get(WATCHDOG_PID, "")
    is_ours = not pid or pid == str(os.getpid())
    return int(microseconds) / 1e6 if is_ours and microseconds.isdecimal() else 0.0
