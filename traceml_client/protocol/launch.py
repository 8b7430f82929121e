"""How a launcher starts its own daemon: one JSON document in, one ready line out, both on inherited descriptors.

The document holds the token, so it never stands on a command line or in an environment.
"""

from __future__ import annotations

import msgspec


class DaemonLaunch(msgspec.Struct, frozen=True):
    """The launcher's order to `python -m traceml_daemon supervise --config-fd N --ready-fd M`."""

    run_name: str
    run_id: str
    run_dir: str
    """Absolute; exists already with its `nodes/` and `aggregator/` folders, made by the launcher."""
    token: str
    """Empty: no authentication (several nodes without a shared secret)."""
    bind_host: str
    port: int
    is_port_required: bool
    """False: take any free port if `port` is taken."""
    nnodes: int
    """The smallest number of nodes where the launch says MIN:MAX."""
    nproc_per_node: int
    finalize_timeout_s: float
    settle_s: float
    has_history: bool
    created_ns: int
    launcher_pid: int
    launcher_start_ticks: int
    is_token_offered: bool = False
    """The token stands in the run folder: nodes that do not share it are let in without a proof, and it is told."""
    asked_name: str = ""
    """The run name that launchers of other nodes ask for: without the suffix of a derived name that was taken."""
    tls_cert: str = ""
    tls_key: str = ""
    """Files of the daemon's certificate and its key; both or none."""
    has_html: bool = False
    """Also write final_summary.html."""


class DaemonReady(msgspec.Struct, frozen=True):
    """The ready line, written once the port is bound and the database is open."""

    port: int
    pid: int


class DaemonFailed(msgspec.Struct, frozen=True):
    """Written in place of the ready line where the daemon cannot serve."""

    error: str
    is_port_taken: bool = False


def layout_rank_dir(node_index: int, rank: int, attempt: int) -> str:
    """A rank's own folder, relative to the run folder."""
    return f"nodes/node_{node_index}/ranks/rank_{rank}/attempt_{attempt}"


RECORDER_FILE = "recorder.bin"
"""In a rank's folder: the content of its ring, kept where the rank died or the daemon could not take its records."""
NODE_FILE = "node.json"
DATABASE_FILE = "telemetry.sqlite"
TRAINING_STDOUT_FILE = "training.stdout.log"
TRAINING_STDERR_FILE = "training.stderr.log"
AGGREGATOR_DIR = "aggregator"
TOKEN_FILE = "aggregator/token"
"""Of a live run on several nodes whose user gave no secret."""
AGGREGATOR_STDERR_FILE = "aggregator/process.stderr.log"


def layout_node_dir(node_index: int) -> str:
    """A node's folder, relative to the run folder."""
    return f"nodes/node_{node_index}"
