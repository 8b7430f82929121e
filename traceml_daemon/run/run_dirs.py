"""Run folders that a serving daemon makes under its own logs folder."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from traceml_client.protocol import launch
from traceml_client.protocol.errors import ConfigError, StoreError
from traceml_client.protocol.manifest import FILE_NAME, Manifest, read_manifest
from traceml_daemon.run.run_manifest import is_held


def make_logs_dir(path: Path) -> None:
    """Raises ConfigError with one line if it cannot be made or written."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / f".probe-{secrets.token_hex(4)}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"--logs-dir {path} is not writable: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run's folder that is ours now."""

    path: Path
    left_behind: Manifest | None = None
    """Of the run that stands there already and is to be gone on with: its daemon died."""


def make_run_dir(logs_dir: Path, run_name: str) -> RunDir:
    """Take LOGS_DIR/RUN_NAME for a new run, with its `nodes/` and `aggregator/`, all mode 0700.

    Raises:
        ConfigError: a run of that name is there that is over or alive, or the folder cannot be made.
    """
    run_dir = logs_dir / run_name
    try:
        run_dir.mkdir(mode=0o700)
    except FileExistsError:
        return _take_over(run_dir)
    except OSError as error:
        raise ConfigError(f"--logs-dir {logs_dir} is not writable: {error.strerror}") from None
    for name in ("nodes", launch.AGGREGATOR_DIR):
        (run_dir / name).mkdir(mode=0o700)
    return RunDir(run_dir)


def _take_over(run_dir: Path) -> RunDir:
    where = f"--run-name {run_dir.name}: {run_dir}"
    if not (run_dir / FILE_NAME).exists():
        raise ConfigError(f"{where} exists and is no run folder of ours; take another name")
    try:
        found = read_manifest(run_dir)
    except StoreError:
        raise ConfigError(f"{where} holds a run whose manifest is damaged; take another name") from None
    if found.status != "running":
        raise ConfigError(f"{where} is a run that is {found.status} already; take another name")
    if is_held(found):
        raise ConfigError(f"{where} is a run that is still alive; take another name")
    return RunDir(run_dir, found)


def new_run_name() -> str:
    """Time and a short random id."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
