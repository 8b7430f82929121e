"""The categories that an exception's type, an exit code or a signal can tell, and what to do about each.

A category is a cause, never a wrapper. What only the text of a log can tell apart is not tried here; where a sign fits
several causes, the category says so (`sigkill_unattributed`) and names the missing fact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from traceml_client.protocol.node import RankError
from traceml_daemon.report.form import Confidence


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a category. In commands `{stderr}` is the failed rank's own stream."""

    family: str
    next_step: str
    command: str | None = "tail -n 50 {stderr}"
    verify_command: str | None = None
    missing_fact: str | None = None
    missing_command: str = "tail -n 50 {stderr}"


_READ: Final = "Read the traceback of that rank; it was written at the raise."
_OOM_LOG: Final = "dmesg -T | grep -i -E 'out of memory|killed process'"

ADVICE: Final[dict[str, Advice]] = {
    "python_exception": Advice("code", _READ),
    "nonzero_exit": Advice(
        "code",
        "Find where the script exits with that code; no exception was raised.",
        missing_fact="what the rank printed before it exited",
    ),
    "import_error": Advice("launch", "Install the missing module into the environment that torchrun's Python uses."),
    "host_memory_error": Advice(
        "memory",
        "Lower the memory need of the rank (batch, workers, copies), or raise its limit.",
        "free -h; ulimit -v",
    ),
    "cuda_oom": Advice("memory", "Lower the batch size or the model's memory need on that device.", "nvidia-smi"),
    "sigkill_unattributed": Advice(
        "signal",
        "Find out who sent SIGKILL: the kernel's OOM killer, a scheduler and a person look alike from inside.",
        _OOM_LOG,
        missing_fact="a kernel, cgroup or scheduler record of the kill",
        missing_command=_OOM_LOG,
    ),
    "segfault": Advice(
        "signal", "Look at the native stack: a C extension or a driver read memory that is not its own."
    ),
    "abort": Advice("signal", "Read the last lines before the abort: a native library ended the process on purpose."),
    "bus_error_shm": Advice(
        "signal",
        "Check the size of /dev/shm, and that no mapped file was cut short.",
        "df -h /dev/shm",
        missing_fact="whether /dev/shm was full",
        missing_command="df -h /dev/shm",
    ),
    "illegal_instruction": Advice(
        "signal", "Check that the libraries were built for this processor, and native arithmetic for zero."
    ),
    "sigterm_unattributed": Advice(
        "external",
        "Find out who sent SIGTERM: a scheduler's time limit, a preemption or a person.",
        "journalctl --since -1h | tail -n 50",
        missing_fact="who sent SIGTERM",
        missing_command="scontrol show job $SLURM_JOB_ID",
    ),
    "hangup": Advice(
        "external", "Start the job where the end of a session does not reach it (tmux, nohup, a scheduler)."
    ),
    "interrupted": Advice("external", "Nothing failed: somebody ended the run by hand.", None),
    "collective_timeout": Advice(
        "communication",
        "Find the rank that did not arrive at the collective; it has no time-out of its own.",
        missing_fact="which rank did not arrive, and what it did instead",
    ),
    "collateral_only": Advice(
        "communication",
        "Look at the nodes and ranks without an error of their own: the first failure is not among those seen.",
        missing_fact="what happened to the rank that went first",
    ),
    "rendezvous_failed": Advice("rendezvous", "Check that every node reaches the master's address and port."),
    "port_in_use": Advice("rendezvous", "Free the port or choose another one.", "ss -ltnp", "ss -ltn"),
    "file_not_found": Advice("filesystem", "Check the path on the node of that rank."),
    "permission_denied": Advice("filesystem", "Check the owner and mode of the path on the node of that rank."),
    "disk_full": Advice("filesystem", "Free space or a quota on the volume that was written to.", "df -h", "df -h"),
    "corrupted_file": Advice("filesystem", "Restore the file: it is truncated or not what it should be."),
    "too_many_open_files": Advice("limits", "Raise the descriptor limit or close files.", "ulimit -n", "ulimit -n"),
    "thread_limit": Advice("limits", "Raise the process limit or start fewer workers.", "ulimit -u", "ulimit -u"),
    "compile_error": Advice("code", "Run once without torch.compile to see whether the model itself is sound."),
    "insufficient_evidence": Advice(
        "unknown",
        "Read the streams of torchrun and of the ranks.",
        "tail -n 100 {stderr}",
        missing_fact="an error, exit code or signal of any rank",
    ),
}

_BY_TYPE: Final = {
    "ImportError": "import_error",
    "ModuleNotFoundError": "import_error",
    "MemoryError": "host_memory_error",
    "OutOfMemoryError": "cuda_oom",
    "FileNotFoundError": "file_not_found",
    "PermissionError": "permission_denied",
    "BadZipFile": "corrupted_file",
    "UnpicklingError": "corrupted_file",
    "KeyboardInterrupt": "interrupted",
    "DistStoreError": "rendezvous_failed",
    "RendezvousTimeoutError": "rendezvous_failed",
    "RendezvousConnectionError": "rendezvous_failed",
    "BackendCompilerFailed": "compile_error",
}
_BY_ERRNO: Final = {
    2: "file_not_found",
    12: "host_memory_error",
    13: "permission_denied",
    24: "too_many_open_files",
    27: "disk_full",
    28: "disk_full",
    98: "port_in_use",
    122: "disk_full",
}
_VAGUE_TYPES: Final = frozenset({"RuntimeError", "OSError", "Exception", "ConnectionResetError", "EOFError"})
"""Types that torch and Python raise for many causes."""
_ERRNO: Final = re.compile(r"^\[Errno (\d+)\]")

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

_PEER_LOST_TYPES: Final = frozenset({"DistBackendError", "DistNetworkError"})
_PEER_LOST: Final = re.compile(
    r"connection (was )?(closed|reset|refused) by peer|connection reset|remote process exited|ncclRemoteError"
    r"|socket closed|broken pipe|communicator was aborted",
    re.IGNORECASE,
)
_TIMED_OUT: Final = re.compile(r"timed out waiting|watchdog caught collective operation timeout|socket timeout", re.I)
_FROM_TORCH: Final = frozenset({"RuntimeError", *_PEER_LOST_TYPES, "DistError", "DistStoreError"})


def short_type(error: RankError) -> str:
    """`torch.distributed.DistBackendError` is DistBackendError to people."""
    return error.type.rpartition(".")[2]


def is_collective_timeout(error: RankError) -> bool:
    """A peer did not arrive; says nothing of the rank that raises it."""
    return short_type(error) in _FROM_TORCH and _TIMED_OUT.search(error.message) is not None


def is_peer_lost(error: RankError) -> bool:
    """The consequence of another rank's end."""
    kind = short_type(error)
    return kind in _PEER_LOST_TYPES or (kind in _FROM_TORCH and _PEER_LOST.search(error.message) is not None)


def of_error(error: RankError) -> tuple[str, Confidence]:
    """The category of an original error."""
    errno = _ERRNO.match(error.message)
    by_errno = _BY_ERRNO.get(int(errno[1])) if errno else None
    category = by_errno or _BY_TYPE.get(short_type(error))
    if category is not None:
        return category, "confirmed"
    return "python_exception", "likely" if short_type(error) in _VAGUE_TYPES else "confirmed"


def of_signal(signal: str) -> tuple[str, Confidence]:
    """The category of a death by a signal; one of an unknown signal says only that."""
    return _BY_SIGNAL.get(signal, ("insufficient_evidence", "unknown"))
