"""Processes by descriptor: a pidfd names one process for good, says when it ends, and on newer kernels how.

Only Linux. Nothing here ever waits for a process that is not named.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import struct
from typing import Final

from traceml_launch.waiting import unless

# struct pidfd_info of linux/pidfd.h: u64 mask, u64 cgroupid, eleven u32, s32 exit_code, then newer fields.
_INFO: Final = struct.Struct("<QQ11Ii8x")
_INFO_EXIT: Final = 1 << 3
_GET_INFO: Final = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT_CODE_FIELD: Final = 13


def open_pidfd(pid: int) -> int | None:
    """A descriptor of that process; null if there is no such process."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def wait_status(pidfd: int) -> int | None:
    """The status, as `waitpid` gives it, of a process that has ended and been reaped by its parent.

    Null on kernels before 6.15, and while nobody has reaped it. Works for processes that are not our children.
    """
    buffer = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:
        return None
    info = _INFO.unpack(buffer)
    return int(info[_EXIT_CODE_FIELD]) if info[0] & _INFO_EXIT else None


def reap(pidfd: int) -> int | None:
    """Reap it if it is an ended child of ours (or one that we adopted); its status as `waitpid` gives it, else null."""
    try:
        info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if info is None:
        return None
    if info.si_code == os.CLD_EXITED:
        return int(info.si_status) << 8
    return int(info.si_status) | (0x80 if info.si_code == os.CLD_DUMPED else 0)


def is_gone(pidfd: int) -> bool:
    """Whether it has ended (reaped or not)."""
    return wait_gone_blocking(pidfd, timeout_s=0)


def wait_gone_blocking(pidfd: int, *, timeout_s: float) -> bool:
    """As `wait_gone`, where there is no event loop."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def send_signal(pidfd: int, number: int) -> bool:
    """False if the process is gone already, or is not ours to signal."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    return True


async def wait_gone(pidfd: int, *, timeout_s: float | None = None) -> bool:
    """Wait until it has ended; False if that took longer than `timeout_s`."""
    if is_gone(pidfd):
        return True
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    # A descriptor of its own: two tasks may wait for the same process, and a loop has one reader for a descriptor.
    own_fd = os.dup(pidfd)
    loop.add_reader(own_fd, gone.set)
    try:
        return bool(await unless(gone.wait(), timeout_s=timeout_s))
    finally:
        loop.remove_reader(own_fd)
        os.close(own_fd)


def split_status(status: int) -> tuple[int | None, str | None]:
    """A wait status as (exit code, signal name), one of them null."""
    number = status & 0x7F
    return (None, signal_name(number)) if number else (status >> 8 & 0xFF, None)


def signal_name(number: int) -> str:
    """SIGKILL and so on; SIGRTMIN+3 style numbers have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
