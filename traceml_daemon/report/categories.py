"""The categories that a signal can tell, and the short name of an exception's type.

A category is a cause, never a wrapper; where a sign fits several causes, the category says so (`sigkill_unattributed`).
What an exception says is read by the triage.
"""

from __future__ import annotations

from typing import Final

from traceml_client.protocol.node import RankError
from traceml_daemon.report.form import Confidence

_BY_SIGNAL: Final[dict[str, tuple[str, Confidence]]] = {
    "SIGKILL": ("sigkill_unattributed", "unknown"),
    "SIGSEGV": ("segfault", "confirmed"),
    "SIGABRT": ("abort", "confirmed"),
    "SIGBUS": ("bus_error_shm", "likely"),
    "SIGILL": ("illegal_instruction", "confirmed"),
    "SIGFPE": ("illegal_instruction", "confirmed"),
    "SIGTERM": ("sigterm_unattributed", "unknown"),
    "SIGHUP": ("hangup", "likely"),
    "SIGINT": ("interrupted", "likely"),
    "SIGQUIT": ("interrupted", "likely"),
}


def short_type(error: RankError) -> str:
    """`torch.distributed.DistBackendError` is DistBackendError to people."""
    return error.type.rpartition(".")[2]


def of_signal(signal: str) -> tuple[str, Confidence]:
    """The category of a death by a signal; one of an unknown signal says only that."""
    return _BY_SIGNAL.get(signal, ("insufficient_evidence", "unknown"))
