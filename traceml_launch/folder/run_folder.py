"""The run's folder, taken atomically by its owner and given back if nothing starts after all.

A folder appears together with its first manifest (built aside, then renamed into place), so no other launcher ever sees
one that belongs to nobody. That first manifest is written before a daemon exists; from then on the daemon owns it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from traceml_client.protocol import launch, manifest
from traceml_client.protocol.errors import ConfigError, StoreError
from traceml_launch.commandline.config import LaunchConfig

MAX_SUFFIX = 1000
"""A derived name that is taken this often has another problem."""

FolderState = Literal["free", "live", "finished", "abandoned", "foreign"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """What `reserve` took. Call `confirm` once training has started, or `release` if it never will."""

    run_name: str
    """The name asked for, with a suffix where a derived one was taken."""
    run_id: str
    run_dir: Path
    made: tuple[Path, ...] = ()
    """Folders above it that had to be created, outermost first."""
    replaced: Path | None = None
    """Where the run that `--overwrite` replaces waits for the outcome."""


def state_of(run_dir: Path, *, now_ns: int) -> FolderState:
    """Whether a run stands there, and in which state. `foreign`: something that no manifest of ours describes."""
    if not os.path.lexists(run_dir) or (run_dir.is_dir() and not any(run_dir.iterdir())):
        return "free"
    try:
        found = manifest.read_manifest(run_dir)
    except StoreError:
        return "foreign"
    if found.status != "running":
        return "finished"
    return "live" if manifest.has_lease(found, now_ns=now_ns) else "abandoned"


def reserve(config: LaunchConfig, *, holder: manifest.LeaseHolder, now_ns: int) -> RunFolder:
    """Take LOGS_DIR/RUN_NAME for a new run: `nodes/`, `aggregator/` and a first manifest, folders 0700, file 0600.

    Raises:
        ConfigError: the logs folder cannot be written, or an explicit name is taken; nothing is left behind.
    """
    made = make_dirs(config.logs_dir, option="--logs-dir")
    staged: Path | None = None
    try:
        run_id = secrets.token_hex(16)
        staged = _stage(config)
        for run_name in candidate_names(config, config.run_name):
            run_dir = config.logs_dir / run_name
            replaced = _make_way(config, run_dir, now_ns=now_ns)
            _write_first_manifest(config, staged, run_name=run_name, run_id=run_id, holder=holder, now_ns=now_ns)
            if _move_into_place(staged, run_dir):
                return RunFolder(run_name=run_name, run_id=run_id, run_dir=run_dir, made=made, replaced=replaced)
            _put_back(replaced, run_dir)
        if config.is_run_name_explicit:
            raise refusal(config, state_of(config.logs_dir / config.run_name, now_ns=now_ns))
        raise ConfigError(f"--run-name {config.run_name}: {config.logs_dir} holds too many runs of that name")
    except OSError as error:
        _undo(staged, made)
        raise ConfigError(f"--logs-dir {config.logs_dir} is not writable: {error.strerror}") from None
    except BaseException:
        _undo(staged, made)
        raise


def confirm(folder: RunFolder) -> None:
    """Training has started: what `--overwrite` replaced goes for good."""
    if folder.replaced is not None:
        shutil.rmtree(folder.replaced, ignore_errors=True)


def release(folder: RunFolder) -> None:
    """Nothing was started: leave the disk as it was before `reserve`."""
    shutil.rmtree(folder.run_dir, ignore_errors=True)
    _put_back(folder.replaced, folder.run_dir)
    remove_empty(folder.made)


def make_dirs(path: Path, *, option: str) -> tuple[Path, ...]:
    """Create `path` with its parents, mode 0700; return what was created, outermost first.

    Raises:
        ConfigError: it cannot be made or is no folder; the text names `option`, and nothing is left behind.
    """
    missing = [parent for parent in (path, *path.parents) if not os.path.lexists(parent)]
    made: list[Path] = []
    try:
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another node's launcher made it at the same moment
                folder.mkdir(mode=0o700)
                made.append(folder)
        if not path.is_dir():
            raise NotADirectoryError(20, "it is not a folder")
    except OSError as error:
        remove_empty(made)
        raise ConfigError(f"{option} {path} is not writable: {error.strerror}") from None
    return tuple(made)


def check_writable(logs_dir: Path) -> None:
    """Make the logs folder and see whether something can be put into it; it stays, for others may be about to use it.

    Raises:
        ConfigError: neither, or only the first.
    """
    made = make_dirs(logs_dir, option="--logs-dir")
    try:
        Path(tempfile.mkdtemp(prefix=".writable-", dir=logs_dir)).rmdir()
    except OSError as error:
        remove_empty(made)
        raise ConfigError(f"--logs-dir {logs_dir} is not writable: {error.strerror}") from None


def remove_empty(folders: tuple[Path, ...] | list[Path]) -> None:
    """Remove those of our own folders, innermost first, that nobody has put anything into."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def refusal(config: LaunchConfig, state: FolderState) -> ConfigError:
    """Why an explicit run name cannot be used where its folder is in `state`."""
    where = f"--run-name {config.run_name}: {config.logs_dir / config.run_name}"
    if state == "live":
        return ConfigError(f"{where} is a run that is still alive; take another name")
    if state == "foreign":
        return ConfigError(f"{where} exists and is no run folder of ours; take another name or remove it")
    return ConfigError(f"{where} is a run that is {state} already; take another name or add --overwrite")


def candidate_names(config: LaunchConfig, run_name: str) -> Iterator[str]:
    """The name itself; with suffixes where the user did not choose it."""
    yield run_name
    if not config.is_run_name_explicit:
        yield from (f"{run_name}-{number}" for number in range(2, MAX_SUFFIX))


def _make_way(config: LaunchConfig, run_dir: Path, *, now_ns: int) -> Path | None:
    """Look what stands at `run_dir`; move it aside where it may be replaced, and return where it is now."""
    state = state_of(run_dir, now_ns=now_ns)
    if state == "free" or not config.is_run_name_explicit:
        return None
    if not config.overwrite or state in ("live", "foreign"):
        raise refusal(config, state)
    aside = run_dir.with_name(f".{run_dir.name}.replaced-{secrets.token_hex(4)}")
    run_dir.rename(aside)
    return aside


def _move_into_place(staged: Path, run_dir: Path) -> bool:
    """False where something non-empty stands there (a derived name, or a launcher that came first)."""
    try:
        staged.rename(run_dir)
    except OSError:
        if os.path.lexists(run_dir):
            return False
        raise
    return True


def _put_back(replaced: Path | None, run_dir: Path) -> None:
    if replaced is not None:
        with contextlib.suppress(OSError):
            replaced.rename(run_dir)


def _stage(config: LaunchConfig) -> Path:
    staged = Path(tempfile.mkdtemp(prefix=".reserving-", dir=config.logs_dir))
    for name in ("nodes", launch.AGGREGATOR_DIR):
        (staged / name).mkdir(mode=0o700)
    return staged


def _undo(staged: Path | None, made: tuple[Path, ...]) -> None:
    if staged is not None:
        shutil.rmtree(staged, ignore_errors=True)
    remove_empty(made)


def _write_first_manifest(
    config: LaunchConfig, staged: Path, *, run_name: str, run_id: str, holder: manifest.LeaseHolder, now_ns: int
) -> None:
    first = manifest.first_manifest(
        run_name=run_name,
        run_id=run_id,
        created_ns=now_ns,
        nnodes=config.nnodes_min,
        nproc_per_node=config.num_local_ranks,
    )
    lease = manifest.new_lease(holder, now_ns=now_ns)
    manifest.write_manifest(staged, msgspec.structs.replace(first, lease=lease))
