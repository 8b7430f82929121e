"""Every environment variable that we read or set, parsed here only; a test keeps `os.environ` out of the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from traceml_client.protocol.errors import ConfigError

HANDOVER = "TRACEML_HANDOVER"
"""Path of the launcher's Unix socket; set for torchrun and so in every rank."""
RUN_NONCE = "TRACEML_RUN_NONCE"
"""Marks the processes of one run for reaping. No secret."""
TOKEN = "TRACEML_TOKEN"
AGGREGATOR_HOST = "TRACEML_AGGREGATOR_HOST"
AGGREGATOR_PORT = "TRACEML_AGGREGATOR_PORT"
RUN_NAME = "TRACEML_RUN_NAME"
TLS_CA = "TRACEML_TLS_CA"
TLS_CERT = "TRACEML_TLS_CERT"
TRACE_MAX_STEPS = "TRACEML_TRACE_MAX_STEPS"
RANK_PROCESS = "TRACEML_RANK_PROCESS"
"""pid:start_ticks of the process that `init()` measures; its children inherit it and so know that they are not it."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
NOTIFY_SOCKET = "NOTIFY_SOCKET"
WATCHDOG_USEC = "WATCHDOG_USEC"
WATCHDOG_PID = "WATCHDOG_PID"
"""systemd's three."""

DEFAULT_AGGREGATOR_PORT = 29765


def snapshot() -> dict[str, str]:
    """A copy of the environment as it is now."""
    return dict(os.environ)


def forget_token() -> None:
    """Take the token out of this process's environment, so that a script that prints it prints no secret."""
    os.environ.pop(TOKEN, None)


def mark_rank_process(identity: str) -> None:
    """Tell the processes that this one will start that they are not the rank."""
    os.environ[RANK_PROCESS] = identity


def option_variable(option: str) -> str:
    """The variable that sets a command-line option: `--logs-dir` reads TRACEML_LOGS_DIR."""
    return "TRACEML_" + option.lstrip("-").replace("-", "_").upper()


def set_default(name: str, value: str) -> None:
    """Set a variable for this process and its children, unless it is set already."""
    os.environ.setdefault(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnvironment:
    """What torchrun (or plain Python) and we told this process about itself."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    group_rank: int
    """torchrun's node number of this restart; changes between restarts of a dynamic job."""
    torch_restart_count: int
    error_file: str | None
    handover_path: str | None
    aggregator_host: str
    aggregator_port: int
    token: str
    run_name: str
    trace_max_steps: int | None
    tls_ca: str
    """File of authorities; the aggregator's certificate must be for its host."""
    tls_cert: str
    """Where there is none: file of the aggregator's own certificate."""
    rank_process: str | None
    """Set: some ancestor (or this process) is measured already."""

    @classmethod
    def parse(cls, environ: Mapping[str, str]) -> RankEnvironment:
        """Read it from a mapping; outside torchrun a process is rank 0 of 1.

        Raises:
            ConfigError: a variable is not the number it must be.
        """
        world_size = _integer(environ, "WORLD_SIZE", 1)
        local_world_size = _integer(environ, "LOCAL_WORLD_SIZE", world_size)
        rank = _integer(environ, "RANK", 0)
        max_steps = _integer(environ, TRACE_MAX_STEPS, -1)
        return cls(
            rank=rank,
            local_rank=_integer(environ, "LOCAL_RANK", rank),
            world_size=world_size,
            local_world_size=local_world_size,
            group_rank=_integer(environ, "GROUP_RANK", rank // max(1, local_world_size)),
            torch_restart_count=_integer(environ, "TORCHELASTIC_RESTART_COUNT", 0),
            error_file=environ.get(ERROR_FILE) or None,
            handover_path=environ.get(HANDOVER) or None,
            aggregator_host=environ.get(AGGREGATOR_HOST) or "127.0.0.1",
            aggregator_port=_integer(environ, AGGREGATOR_PORT, DEFAULT_AGGREGATOR_PORT),
            token=environ.get(TOKEN, ""),
            run_name=environ.get(RUN_NAME, ""),
            trace_max_steps=None if max_steps < 0 else max_steps,
            tls_ca=environ.get(TLS_CA, ""),
            tls_cert=environ.get(TLS_CERT, ""),
            rank_process=environ.get(RANK_PROCESS) or None,
        )


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number") from None
