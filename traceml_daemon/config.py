"""What a run and a serving daemon were asked for, as frozen values that are checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from traceml_client.protocol import environ
from traceml_client.protocol.errors import ConfigError
from traceml_client.protocol.launch import DaemonLaunch

MAX_NAME_LENGTH: Final = 128
MAX_WORLD_SIZE: Final = 1 << 17
"""Above any job that one daemon could serve; keeps what a hello claims within reason."""
CONFIG_FILE: Final = "traceml.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run of one daemon."""

    run_name: str
    run_id: str
    run_dir: Path
    asked_name: str = ""
    """The name by which launchers of other nodes ask for the run, where it differs from `run_name`."""
    token: str = field(default="", repr=False)
    """Empty: nobody is asked for a proof."""
    is_token_offered: bool = False
    """Nodes that cannot know it are let in without a proof, as long as not all nodes have given one."""
    nnodes: int = 1
    nproc_per_node: int = 0
    """0: the ranks will say."""
    finalize_timeout_s: float = 300.0
    settle_s: float = 1.0
    has_history: bool = True
    has_html: bool = False
    """Also write final_summary.html."""
    is_direct: bool = False
    """No launcher is expected."""
    created_ns: int = 0

    @property
    def names(self) -> tuple[str, str]:
        """By which peers may ask for it, beside its id; an empty one is nobody's."""
        return self.run_name, self.asked_name

    @classmethod
    def from_launch(cls, launch: DaemonLaunch) -> RunConfig:
        return cls(
            run_name=launch.run_name,
            run_id=launch.run_id,
            run_dir=Path(launch.run_dir),
            asked_name=launch.asked_name,
            token=launch.token,
            is_token_offered=launch.is_token_offered,
            nnodes=launch.nnodes,
            nproc_per_node=launch.nproc_per_node,
            finalize_timeout_s=launch.finalize_timeout_s,
            settle_s=launch.settle_s,
            has_history=launch.has_history,
            has_html=launch.has_html,
            created_ns=launch.created_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """`traceml serve`: a daemon of its own, for runs that are started without it."""

    logs_dir: Path
    run_name: str | None = None
    """Of the run that ranks without a name of their own join; null: one is made up for each."""
    nnodes: int = 1
    nproc_per_node: int = 0
    port: int = environ.DEFAULT_AGGREGATOR_PORT
    bind_host: str = "127.0.0.1"
    token: str = field(default="", repr=False)
    finalize_timeout_s: float = 300.0
    settle_s: float = 1.0
    tls_cert: str = ""
    tls_key: str = ""


def check_run_name(name: str, *, source: str = "--run-name") -> str:
    """A run's name is a folder's name.

    Raises:
        ConfigError: it is empty, hidden, too long, or would lead out of the logs folder.
    """
    is_plain = name.isprintable() and not any(letter in name for letter in "/\\\0")
    if not name or not is_plain or name.startswith(".") or len(name.encode()) > MAX_NAME_LENGTH:
        raise ConfigError(
            f"{source} {name[:MAX_NAME_LENGTH]!r}: a run name is a plain folder name, "
            f"not hidden, without '/', of at most {MAX_NAME_LENGTH} bytes"
        )
    return name
