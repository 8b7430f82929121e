"""Starts the owner's daemon, and the offline finalizer that does its work where it died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from traceml_client.protocol import environ, launch
from traceml_client.protocol.manifest import TelemetryReason
from traceml_launch import command
from traceml_launch.aggregator.daemon_process import DaemonProcess
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.folder.run_folder import RunFolder
from traceml_launch.identity import LauncherIdentity
from traceml_launch.output.logfile import open_private
from traceml_launch.system import pidfds

_ANY_ADDRESS: Final = frozenset(("", "0.0.0.0", "::"))
_KILL_S: Final = 2.0
REQUIRED_S: Final = 30.0
"""`--on-missing-aggregator raise`: how long a daemon, ours or another node's, may take to let us in."""


def start(
    config: LaunchConfig,
    folder: RunFolder,
    me: LauncherIdentity,
    *,
    token: str,
    is_token_offered: bool = False,
    port: int = 0,
) -> DaemonProcess:
    """Start it; not waited for. Raises OSError.

    Args:
        is_token_offered: the user gave no token; who shares the folder finds ours there.
        port: where its predecessor listened, which ranks were told; 0: as the launch wants it.
    """
    return DaemonProcess(
        lambda config_fd, ready_fd: command.daemon_argv(python=sys.executable, config_fd=config_fd, ready_fd=ready_fd),
        _order(config, folder, me, token=token, is_token_offered=is_token_offered, port=port),
        environ=command.daemon_environment(environ=environ.snapshot(), run_id=folder.run_id),
        stderr_path=folder.run_dir / launch.AGGREGATOR_STDERR_FILE,
    )


def _order(
    config: LaunchConfig, folder: RunFolder, me: LauncherIdentity, *, token: str, is_token_offered: bool, port: int
) -> launch.DaemonLaunch:
    return launch.DaemonLaunch(
        run_name=folder.run_name,
        run_id=folder.run_id,
        run_dir=str(folder.run_dir),
        token=token,
        bind_host=config.bind_host,
        port=port or config.aggregator_port,
        is_port_required=port > 0 or config.is_port_required,
        nnodes=config.nnodes_min,
        nproc_per_node=config.num_local_ranks,
        finalize_timeout_s=config.finalize_timeout_s,
        settle_s=config.settle_s,
        has_history=config.has_history,
        created_ns=me.started_ns,
        launcher_pid=me.pid,
        launcher_start_ticks=me.start_ticks,
        is_token_offered=is_token_offered,
        asked_name=config.run_name,
        tls_cert="" if config.tls_key is None else str(config.tls_cert),
        tls_key="" if config.tls_key is None else str(config.tls_key),
        has_html=config.has_html,
    )


def own_host(config: LaunchConfig) -> str:
    """Where a launcher reaches its own daemon."""
    return "127.0.0.1" if config.bind_host in _ANY_ADDRESS else config.bind_host


async def finalize_offline(
    run_dir: Path, *, run_id: str, reason: TelemetryReason, timeout_s: float, spared: set[int]
) -> bool:
    """Make the reports from the database, `node.json` and the recorders; whether that succeeded in time.

    Args:
        reason: why no daemon does it; stands in the reports.
        spared: gets the finalizer's pid: it carries the run's mark, and is not to be taken for one of its leftovers.
    """
    process = _start_finalizer(run_dir, run_id, reason)
    if process is None:
        return False
    spared.add(process.pid)
    pidfd = pidfds.open_pidfd(process.pid)
    assert pidfd is not None, "an unreaped child always has a pidfd"
    try:
        if await pidfds.wait_gone(pidfd, timeout_s=timeout_s):
            return process.wait() == 0
        process.kill()
        await pidfds.wait_gone(pidfd, timeout_s=_KILL_S)
        process.poll()
        return False
    finally:
        os.close(pidfd)


def _start_finalizer(run_dir: Path, run_id: str, reason: TelemetryReason) -> subprocess.Popen[bytes] | None:
    try:
        with open_private(run_dir / launch.AGGREGATOR_STDERR_FILE) as diagnostics:
            return subprocess.Popen(
                command.finalize_argv(python=sys.executable, run_dir=str(run_dir), reason=reason),
                env=command.daemon_environment(environ=environ.snapshot(), run_id=run_id),
                stdin=subprocess.DEVNULL,
                stdout=diagnostics,
                stderr=diagnostics,
            )
    except OSError:
        return None
