"""Every message on the wire, a closed set. msgpack arrays, tagged; see `codec` for the rules of their evolution.

The daemon speaks first (`Challenge`), the peer says who it is with a proof (`RankHello`, `NodeHello`), the daemon
answers `Welcome` or `Refused`. Ranks then send records and a marker; launchers send what they know of processes.
Times named `_ns` are wall-clock nanoseconds of the sender unless they say monotonic.
"""

from __future__ import annotations

import msgspec

from traceml_client.protocol.node import NodeReport, RankError

PROTOCOL_MAJOR = 1
"""Peers of another major version are refused; within one, fields are only appended."""

# Reasons of `Refused`.
BAD_TOKEN = "bad_token"
WRONG_RUN = "wrong_run"
WRONG_VERSION = "wrong_version"
UNKNOWN_RANK = "unknown_rank"
UNKNOWN_NODE = "unknown_node"
"""The rank's launcher has not connected (again) yet: the rank tries again."""
SLOT_TAKEN = "slot_taken"
RUN_ENDED = "run_ended"
TLS_REQUIRED = "tls_required"
TOO_MANY = "too_many_connections"

MARKER_STREAM = 255
"""`Ack.stream` for the marker: the daemon has stored that the rank finished."""

NUMBER_ME = -1
"""In a hello: the sender does not know its node index or attempt; the daemon hands it out."""


class Challenge(msgspec.Struct, array_like=True, tag=1, gc=False, frozen=True):
    """Daemon -> anybody, first on every connection."""

    version: int
    nonce: bytes


class RankHello(msgspec.Struct, array_like=True, tag=2, gc=False, frozen=True):
    """Rank -> daemon. Proof claims: "rank", run, node_index, local_rank, attempt."""

    version: int
    run: str
    """The run id where the rank knows it (from its launcher), else the run name, else empty: the daemon's only run."""
    proof: bytes
    node_index: int
    local_rank: int
    attempt: int
    rank: int
    world_size: int
    local_world_size: int
    torch_restart_count: int
    host: str
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: with the pid and the host, the identity of a process."""
    wall_minus_monotonic_ns: int


class NodeHello(msgspec.Struct, array_like=True, tag=3, gc=False, frozen=True):
    """Launcher -> daemon. Proof claims: "node", run, node_rank."""

    version: int
    run: str
    """The run id (owner), else the run name."""
    proof: bytes
    node_rank: int
    """`--node-rank`, or NUMBER_ME under a dynamic rendezvous."""
    nnodes: int
    local_world_size: int
    host: str
    pid: int
    start_ticks: int
    is_owner: bool


class Welcome(msgspec.Struct, array_like=True, tag=4, gc=False, frozen=True):
    """Daemon -> peer. `next_seq` per stream: where a reconnected rank goes on."""

    run_id: str
    run_name: str
    node_index: int
    attempt: int
    next_seq: tuple[int, int]
    run_dir: str = ""
    """Of the daemon, to a launcher: equal to its own where the file system is shared."""


class Refused(msgspec.Struct, array_like=True, tag=5, gc=False, frozen=True):
    """Daemon -> peer, last on the connection."""

    reason: str
    detail: str


class Records(msgspec.Struct, array_like=True, tag=6, gc=False, frozen=True):
    """Rank -> daemon: `count` records from `first_seq` on. A gap before it is what the rank had to drop."""

    stream: int
    first_seq: int
    count: int
    fmt: str
    columns: bytes


class Ack(msgspec.Struct, array_like=True, tag=7, gc=False, frozen=True):
    """Daemon -> rank or launcher: everything before `next_seq` of `stream` is committed."""

    stream: int
    next_seq: int


class RankFinished(msgspec.Struct, array_like=True, tag=8, gc=False, frozen=True):
    """Rank -> daemon: the marker, after its last records. `next_seq`: how many of each stream it ever recorded."""

    ended_ns: int
    next_seq: tuple[int, int]
    exit_code: int | None
    error: RankError | None
    notes: tuple[str, ...] = ()
    """Sentences for the report: why a phase is null, that `trace_step()` would help."""


class RankFailed(msgspec.Struct, array_like=True, tag=9, gc=False, frozen=True):
    """Rank -> daemon, at the raise, ahead of its end."""

    error: RankError


class RankStarted(msgspec.Struct, array_like=True, tag=10, gc=False, frozen=True):
    """Launcher -> daemon: a worker took its pipes and ring. It may die before it ever connects."""

    local_rank: int
    attempt: int
    rank: int
    world_size: int
    local_world_size: int
    torch_restart_count: int
    pid: int
    start_ticks: int
    started_ns: int
    wall_minus_monotonic_ns: int = 0
    """Of the host: places the records of a rank that died before it could say so itself."""


class RankExited(msgspec.Struct, array_like=True, tag=11, gc=False, frozen=True):
    """Launcher -> daemon: the process is gone (its pidfd said so). The exit code follows in the node's report."""

    local_rank: int
    attempt: int
    died_ns: int
    death_order: int


class Salvaged(msgspec.Struct, array_like=True, tag=12, gc=False, frozen=True):
    """Launcher -> daemon: records of a dead rank's ring, read by its launcher. Answered by `SalvageAck`."""

    local_rank: int
    attempt: int
    records: Records


class SalvageAck(msgspec.Struct, array_like=True, tag=13, gc=False, frozen=True):
    """Daemon -> launcher: everything before `next_seq` of that stream of that dead rank is committed."""

    local_rank: int
    attempt: int
    stream: int
    next_seq: int


class TrainingStarted(msgspec.Struct, array_like=True, tag=14, gc=False, frozen=True):
    """Launcher -> daemon: torchrun runs."""

    started_ns: int
    pid: int


class Interrupted(msgspec.Struct, array_like=True, tag=15, gc=False, frozen=True):
    """Launcher -> daemon: the launcher got its first signal; training still runs."""

    signal: str
    at_ns: int


class Tail(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """The end of one log file of a node that may share no file system with the daemon."""

    path: str
    """Relative to the run folder."""
    data: bytes


class NodeFiles(msgspec.Struct, array_like=True, tag=16, gc=False, frozen=True):
    """Launcher -> daemon, before `NodeEnded`, where the run folder is not shared: files to keep under this node."""

    tails: tuple[Tail, ...]


class NodeEnded(msgspec.Struct, array_like=True, tag=17, gc=False, frozen=True):
    """Launcher -> daemon: training has ended on this node, its ranks are gone, their records are handed in.

    `is_final` is False for the early notice that torchrun is gone while records are still being handed in.
    """

    report: NodeReport
    is_final: bool = True


class Ping(msgspec.Struct, array_like=True, tag=18, gc=False, frozen=True):
    """Anybody -> daemon. Carries what the last pong taught: the daemon's clock minus ours, and its error bound."""

    sent_ns: int
    clock_offset_ns: int = 0
    clock_bound_ns: int = -1


class Pong(msgspec.Struct, array_like=True, tag=19, gc=False, frozen=True):
    """Daemon -> anybody: the ping's time and the daemon's own, from the running loop."""

    sent_ns: int
    daemon_ns: int


class RunFinalized(msgspec.Struct, array_like=True, tag=20, gc=False, frozen=True):
    """Daemon -> launchers: reports and manifest are written."""

    telemetry_status: str
    telemetry_reason: str | None
    verdict_lines: tuple[str, ...] = ()


class Notice(msgspec.Struct, array_like=True, tag=21, gc=False, frozen=True):
    """Daemon -> the owner's launcher: what happened on another node and its user should hear of now."""

    text: str


FromDaemon = Challenge | Welcome | Refused | Ack | SalvageAck | Pong | RunFinalized | Notice
FromRank = RankHello | Records | RankFinished | RankFailed | Ping
FromNode = (
    NodeHello | RankStarted | RankExited | Salvaged | TrainingStarted | Interrupted | NodeFiles | NodeEnded | Ping
)
ToDaemon = FromRank | FromNode
Message = FromDaemon | ToDaemon
