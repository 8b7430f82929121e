"""The run's folder as a node sees it that does not own the run: shared with the owner, or a local one of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from traceml_client.protocol import launch
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import read_manifest
from traceml_client.protocol.node import NodeReport
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.folder.run_folder import candidate_names, check_writable, make_dirs, refusal, state_of


def check_joinable(config: LaunchConfig, *, now_ns: int) -> None:
    """Refuse early what cannot be joined: the name of a run that is over, where the user chose that name.

    Raises:
        ConfigError: so it is, or the logs folder cannot be written; one line that names the option.
    """
    check_writable(config.logs_dir)
    if not config.is_run_name_explicit or config.overwrite:
        return
    run_dir = config.logs_dir / config.run_name
    state = state_of(run_dir, now_ns=now_ns)
    if state in ("finished", "abandoned"):
        raise refusal(config, state)
    if state == "foreign" and config.node_rank is not None and _report_of(run_dir, config.node_rank) is not None:
        raise refusal(config, "finished")


def join(config: LaunchConfig, *, run_name: str, run_id: str, node_index: int) -> tuple[Path, bool]:
    """Find the run folder for this node's files once the daemon has said which run this is.

    Also returns whether it is the owner's own, through a shared file system: this node's files need not be sent.

    Args:
        run_name: as the daemon says; the one asked for where no daemon answered.
        run_id: likewise; empty where no daemon answered.

    Raises:
        ConfigError: the folder cannot be made, or holds another run's files under a name that the user chose.
    """
    for name in candidate_names(config, run_name):
        run_dir = config.logs_dir / name
        is_shared = run_id != "" and _run_id_at(run_dir) == run_id
        if is_shared or _is_usable(config, run_dir, run_id=run_id, node_index=node_index):
            make_dirs(run_dir / launch.layout_node_dir(node_index), option="--logs-dir")
            return run_dir, is_shared
    raise refusal(config, "finished")


def _is_usable(config: LaunchConfig, run_dir: Path, *, run_id: str, node_index: int) -> bool:
    """Whether this node's files of this run fit there; makes room where `--overwrite` says so."""
    earlier = _report_of(run_dir, node_index)
    if earlier is None:
        return not run_id or config.overwrite or _run_id_at(run_dir) is None
    if run_id and earlier.run_id == run_id:
        return True
    if config.overwrite:
        shutil.rmtree(run_dir / launch.layout_node_dir(node_index), ignore_errors=True)
        return True
    return False


def _run_id_at(run_dir: Path) -> str | None:
    try:
        return read_manifest(run_dir).run_id
    except StoreError:
        return None


def _report_of(run_dir: Path, node_index: int) -> NodeReport | None:
    """What `node.json` says of an earlier run of this node there; null if there is none that can be read."""
    path = run_dir / launch.layout_node_dir(node_index) / launch.NODE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeReport)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
