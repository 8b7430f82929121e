"""What a rank and its launcher say to each other over the launcher's Unix socket, before user code runs.

One connection per worker: the rank sends `HandoverRequest`, gets `HandoverGrant` and, by SCM_RIGHTS, the descriptors in
the order below. The connection stays open: when it hangs up, the launcher is gone. Framed as on the wire.
"""

from __future__ import annotations

import msgspec

RING_FD = 0
STDOUT_WRITE_FD = 1
STDERR_WRITE_FD = 2
STDOUT_READ_FD = 3
STDERR_READ_FD = 4
NUM_FDS_WITH_STREAMS = 5
NUM_FDS_WITHOUT_STREAMS = 1

MAX_HANDOVER_BYTES = 64 * 1024


class HandoverRequest(msgspec.Struct, frozen=True):
    """Worker -> launcher: who connects. Ranks and counts are torchrun's."""

    pid: int
    start_ticks: int
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    torch_restart_count: int


class HandoverGrant(msgspec.Struct, frozen=True):
    """Launcher -> worker. The ring descriptor always comes; the four of the pipes if `has_streams`."""

    run_id: str
    run_name: str
    node_index: int
    attempt: int
    has_streams: bool
    rank_dir: str
    """Absolute path of ranks/rank_r/attempt_a; exists."""
    daemon_host: str
    daemon_port: int
    """0: train without a daemon; the ring is still written and its launcher keeps it."""
    token: str
    trace_max_steps: int
    """-1: no limit."""
    tls_trust: str = ""
    """File of certificates (absolute) that tell the daemon; empty: telemetry is not encrypted."""
    tls_name: str = ""
    """The host name that its certificate must be for; empty: it must be the one in the file."""


def decode_request(payload: bytes | memoryview) -> HandoverRequest:
    return msgspec.msgpack.decode(payload, type=HandoverRequest)


def decode_grant(payload: bytes | memoryview) -> HandoverGrant:
    return msgspec.msgpack.decode(payload, type=HandoverGrant)


def encode_payload(message: HandoverRequest | HandoverGrant) -> bytes:
    return msgspec.msgpack.encode(message)
