"""The two process attributes that Python has no name for: who reaps orphans, and what a parent's death sends."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_SET_PDEATHSIG: Final = 1
_SET_CHILD_SUBREAPER: Final = 36

# Loaded at import, so that a freshly forked child only has to call it.
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphaned descendants become our children instead of init's, so none can slip away. Raises OSError."""
    _call(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, number: int) -> None:
    """Called in a child: get signal `number` when the thread that forked us ends; exit if that has happened already.

    Raises:
        OSError: the kernel refused.
    """
    _call(_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(128 + number)


def _call(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
