"""What `traceml run` was asked to do, as one frozen and validated value; `settings.py` builds it, nothing changes it.

Everything that needs this machine (ports, folders, who owns the run) is found out later, by the supervisor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

TargetKind = Literal["script", "module", "program"]
Role = Literal["owner", "peer", "contender"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What torchrun shall train with."""

    kind: TargetKind
    """`script`: a Python file; `module`: `-m NAME`; `program`: `--no-python NAME`."""
    name: str
    args: tuple[str, ...] = ()
    """The script's own arguments, untouched and in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """One node's launch. Counts and ports are within their ranges; names and paths are as the user wrote them."""

    target: Target
    torchrun_options: tuple[str, ...] = ()
    """Options that are torchrun's alone, as the user spelled them; neither counts and addresses nor the target."""

    nproc_per_node: str = "1"
    """As given: a number, `gpu`, `cpu`, `auto` or another device's name."""
    num_local_ranks: int = 1
    """Workers on this node; 0 where only torchrun can tell (`gpu`, `auto`): learnt from the first rank."""
    nnodes_min: int = 1
    nnodes_max: int = 1
    node_rank: int | None = 0
    """`--node-rank`; null under a dynamic rendezvous without one: the daemon hands out the index."""
    is_dynamic_rendezvous: bool = False
    """Nodes meet by a rendezvous backend and may come and go."""
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    """Null on one node where none was given: torchrun takes a free one."""

    run_name: str
    """Valid as a folder name. With `is_run_name_explicit` False it may get a suffix when the folder is reserved."""
    is_run_name_explicit: bool = False
    """False: generated, or derived from the job; a taken name then never stops training."""
    logs_dir: Path = Path("logs")
    """Absolute; need not exist yet."""

    aggregator_host: str = "127.0.0.1"
    """Where this node's ranks and launcher send telemetry."""
    aggregator_port: int = 29765
    is_port_explicit: bool = False
    """False on one node: any free port will do if this one is taken. True: this port or no telemetry."""
    bind_host: str = "127.0.0.1"
    attach: bool = False
    """Use a daemon that runs already at `aggregator_host:aggregator_port`; start none."""
    token: str = field(default="", repr=False)
    """The run's shared secret as given; empty: none was given."""

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None

    finalize_timeout_s: float = 300.0
    settle_s: float = 1.0
    grace_s: float | None = None
    """A known deadline from the first SIGTERM; null: none."""
    linger_s: float = 30.0
    shutdown_timeout_s: float = 30.0
    """torchrun's own time from its first signal to SIGKILL of its workers."""

    is_output_saved: bool = True
    """False: training inherits the terminal and no stream file is made."""
    are_streams_torchruns: bool = False
    """The user gave `--redirects`, `--tee` or `--logs-specs`: ranks keep the descriptors that torchrun gave them."""
    max_log_bytes: int = 0
    """Per stream file; 0: no cap."""
    has_history: bool = True
    has_html: bool = False
    """Also write final_summary.html."""
    trace_max_steps: int | None = None
    is_disabled: bool = False
    """`--disable-traceml`: plain torchrun under the same supervision, no telemetry at all."""
    on_missing_aggregator: Literal["warn", "raise"] = "warn"
    overwrite: bool = False
    notices: tuple[str, ...] = ()
    """Sentences to print once the run's folder is reserved: what was derived, what was taken from behind SCRIPT."""
    is_quiet: bool = False
    """Silences our own lines except errors."""
    has_color: bool = True
    """False under NO_COLOR."""

    @property
    def is_multi_node(self) -> bool:
        return self.nnodes_max > 1

    @property
    def tls_trust(self) -> tuple[str, str] | None:
        """(file, name) as in `TlsTrust`: how the daemon is told; null where telemetry is not encrypted."""
        if self.tls_ca is not None:
            return str(self.tls_ca), self.aggregator_host
        return None if self.tls_cert is None else (str(self.tls_cert), "")

    @property
    def is_port_required(self) -> bool:
        """Whether only this port will do: others were told of it."""
        return self.is_port_explicit or self.is_multi_node

    @property
    def role(self) -> Role:
        """Whether this launcher owns the run: its folder, its daemon, its manifest.

        `contender`: a dynamic rendezvous without a node rank; the first to bind the aggregator's port on a local
        address owns the run.
        """
        if not self.is_multi_node:
            return "owner"
        if self.node_rank is None:
            return "contender"
        return "owner" if self.node_rank == 0 else "peer"
