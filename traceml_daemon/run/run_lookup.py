"""From what a person calls a run to its folder, and the folders of all runs. Blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from traceml_client.protocol.artifacts import SUMMARY_FILE
from traceml_client.protocol.errors import ConfigError, StoreError
from traceml_client.protocol.launch import DATABASE_FILE, TRAINING_STDERR_FILE
from traceml_client.protocol.manifest import FILE_NAME, Manifest, read_manifest
from traceml_daemon import serve_options

RUN_FILES: Final = (FILE_NAME, DATABASE_FILE, SUMMARY_FILE)
"""Any of these makes a folder a run's."""


def logs_dir(flag: str | None, environ: Mapping[str, str], *, folder: Path) -> Path:
    """`--logs-dir` of a command that looks at runs: flag, variable, traceml.toml, default.

    Raises:
        ConfigError: traceml.toml cannot be read.
    """
    file = serve_options.read_config_file(folder)
    _, text = serve_options.find_option("logs-dir", {"logs-dir": flag}, environ, file)
    return folder / Path(text or "logs").expanduser()


def find_run(run: str | None, logs: Path) -> Path:
    """The folder that is meant: a run folder, a file in it, or a name below `logs`; null: the newest run there.

    Raises:
        ConfigError: there is no such run; the text names where it was looked for.
    """
    if run is None:
        newest = runs_in(logs)
        if not newest:
            raise ConfigError(f"no run in {logs}; name a run, or its --logs-dir")
        return newest[0][0]
    given = Path(run).expanduser()
    for candidate in (given, logs / run):
        place = candidate.parent if candidate.name in RUN_FILES and candidate.is_file() else candidate
        if any((place / sign).is_file() for sign in RUN_FILES):
            return place
    where = f"{given}" if given.is_absolute() else f"{given} or {logs / run}"
    raise ConfigError(f"no run at {where}; a run is its folder, its manifest.json, or its name below --logs-dir")


def find_nodes_folder(run: str, logs: Path) -> Path | None:
    """Where nodes left their streams of a run that had no daemon there: its owner never came, or is elsewhere."""
    for candidate in (Path(run).expanduser(), logs / run):
        if any(candidate.glob(f"nodes/node_*/{TRAINING_STDERR_FILE}")):
            return candidate
    return None


def runs_in(logs: Path) -> list[tuple[Path, Manifest]]:
    """Every folder in `logs` with a manifest that can be read, the newest run first; links are passed over."""
    found = []
    for path in logs.iterdir() if logs.is_dir() else ():
        if path.name.startswith(".") or path.is_symlink():
            continue
        try:
            found.append((path, read_manifest(path)))
        except StoreError:
            continue
    return sorted(found, key=lambda each: (each[1].created_at, each[0].name), reverse=True)
