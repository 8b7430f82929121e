"""Run folders that a serving daemon makes under its own logs folder."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from traceml_client.protocol import launch
from traceml_client.protocol.errors import ConfigError, StoreError
from traceml_client.protocol.manifest import FILE_NAME, read_manifest


def make_logs_dir(path: Path) -> None:
    """Raises ConfigError with one line if it cannot be made or written."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / f".probe-{secrets.token_hex(4)}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"--logs-dir {path} is not writable: {error.strerror}") from None


def make_run_dir(logs_dir: Path, run_name: str) -> Path:
    """Take LOGS_DIR/RUN_NAME for a new run, with its `nodes/` and `aggregator/`, all mode 0700.

    Raises:
        ConfigError: a run of that name is there already, or the folder cannot be made.
    """
    run_dir = logs_dir / run_name
    try:
        run_dir.mkdir(mode=0o700)
    except FileExistsError:
        raise ConfigError(f"--run-name {run_name}: {run_dir} {_what_stands(run_dir)}; take another name") from None
    except OSError as error:
        raise ConfigError(f"--logs-dir {logs_dir} is not writable: {error.strerror}") from None
    for name in ("nodes", launch.AGGREGATOR_DIR):
        (run_dir / name).mkdir(mode=0o700)
    return run_dir


def new_run_name() -> str:
    """Time and a short random id."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _what_stands(run_dir: Path) -> str:
    if not (run_dir / FILE_NAME).exists():
        return "exists and is no run folder of ours"
    try:
        status = read_manifest(run_dir).status
    except StoreError:
        return "holds a run whose manifest is damaged"
    return "is a run that has not been finalized" if status == "running" else f"is a {status} run"
