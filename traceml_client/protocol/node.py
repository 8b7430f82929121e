"""What one node knows of its end: the content of `node.json`, and of `NodeEnded` on the wire."""

from __future__ import annotations

from typing import Literal

import msgspec

ExitSource = Literal["pidfd", "proc_stat", "recorder", "torchrun", "unknown"]
"""How an exit is known: PIDFD_INFO_EXIT, /proc/PID/stat, the rank's own record of SystemExit, torchrun's table."""


ErrorKind = Literal["main", "thread", "handled"]
"""Left the main thread; ended another thread; the main thread was still handling it, as in a long `finally`."""


class RankError(msgspec.Struct, frozen=True, omit_defaults=False):
    """An exception, recorded at the raise."""

    kind: ErrorKind
    type: str
    message: str
    traceback: str
    raised_ns: int
    """Wall clock of the rank's host."""
    step: int = 0
    """The step in progress, from 1; 0 before the first."""
    phase: str | None = None
    collective: str | None = None
    """The call of torch.distributed that it came out of, such as `all_reduce(float32[400])`."""
    collective_bytes: int | None = None


class RankEnd(msgspec.Struct, frozen=True):
    """One incarnation of a worker and how it ended, as its launcher saw it."""

    rank: int
    local_rank: int
    attempt: int
    torch_restart_count: int
    pid: int
    started_ns: int
    died_ns: int | None
    death_order: int | None
    """0 for the first death on this node, and so on; null while it lives."""
    exit_code: int | None
    signal: str | None
    """A name such as SIGKILL; null if it exited by itself."""
    exit_source: ExitSource
    is_marker_sent: bool
    """The rank's runtime reached its orderly end."""
    error: RankError | None = None
    thread_error: RankError | None = None
    step: int = 0
    """The step in progress at the end, from 1."""
    phase: str | None = None
    notes: tuple[str, ...] = ()
    num_steps_recorded: int = 0
    num_steps_dropped: int = 0
    stopped_by_launcher: str | None = None
    """The signal that *we* sent it, if we did."""


class ProcessLeft(msgspec.Struct, frozen=True):
    """A process of the run that outlived training, and what was done about it."""

    pid: int
    command: str
    is_detached: bool
    ending: Literal["ended_by_itself", "terminated", "killed", "still_running"]


class NodeReport(msgspec.Struct, frozen=True):
    """`node.json`. Times named `_ns` are wall clock of this node."""

    schema_version: int
    run_name: str
    run_id: str
    node_index: int
    host: str
    launcher_pid: int
    started_ns: int
    ended_ns: int | None
    torchrun_pid: int | None
    exit_code: int | None
    """torchrun's exit code; null if a signal ended it, or if it was never started."""
    signal: str | None
    """The signal that ended torchrun itself."""
    interrupted_by: str | None
    """The signal that the launcher got."""
    ranks: tuple[RankEnd, ...] = ()
    processes_left: tuple[ProcessLeft, ...] = ()
    kernel: dict[str, str] = {}
    torchrun_root_cause_rank: int | None = None
    """The rank in torchrun's own Root Cause block, where it printed one."""
    torchrun_got: str | None = None
    """The signal that torchrun says it ended its workers for; the launcher may have passed it on."""
    script: str = ""
    """The name of the training script, module or program without its folder: runs of the same job have the same."""


NODE_SCHEMA_VERSION = 1
