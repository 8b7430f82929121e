"""The owner's own daemon as a child process, and the offline finalizer that does its work where it died."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from traceml_client.protocol import environ, launch
from traceml_client.protocol.launch import DaemonFailed, DaemonReady
from traceml_client.protocol.manifest import TelemetryReason
from traceml_launch import command
from traceml_launch.assignment import Assignment
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.folder.run_folder import RunFolder
from traceml_launch.output.logfile import open_private
from traceml_launch.system.child import Child

READY_TIMEOUT_S: Final = 20.0
"""Far over a cold start on a busy node, and less than workers wait for what we give them."""
REQUIRED_S: Final = 30.0
"""`--on-missing-aggregator raise`: how long a daemon, ours or another node's, may take to let us in."""
_KILL_S: Final = 2.0
_ANY_ADDRESS: Final = frozenset(("", "0.0.0.0", "::"))


class DaemonCommand(Child):
    """A command of the daemon's; what it says goes to the run's `process.stderr.log`."""

    def __init__(self, argv: Sequence[str], *, run_dir: Path, run_id: str, **options: Any) -> None:
        """Start it. Raises OSError."""
        with open_private(run_dir / launch.AGGREGATOR_STDERR_FILE) as diagnostics:
            super().__init__(
                argv,
                env=command.daemon_environment(environ=environ.snapshot(), run_id=run_id),
                stdin=subprocess.DEVNULL,
                stdout=diagnostics,
                stderr=diagnostics,
                **options,
            )


class OwnDaemon(DaemonCommand):
    """A started daemon, ready or not."""

    def __init__(self, assignment: Assignment, folder: RunFolder, *, port: int) -> None:
        """Start it in a session of its own, for it outlives us. Raises OSError.

        `port`: where its predecessor listened, which ranks were told; 0: as the launch wants it.
        """
        config_fd = os.memfd_create("traceml-daemon-order", os.MFD_CLOEXEC)
        self._ready_fd, ready_write = os.pipe()
        try:
            os.write(config_fd, msgspec.json.encode(_order(assignment, folder, port)))
            os.lseek(config_fd, 0, os.SEEK_SET)
            super().__init__(
                command.daemon_argv(python=sys.executable, config_fd=config_fd, ready_fd=ready_write),
                run_dir=folder.run_dir,
                run_id=folder.run_id,
                pass_fds=(config_fd, ready_write),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._ready_fd)
            raise
        finally:
            os.close(config_fd)
            os.close(ready_write)

    async def ready(self) -> DaemonReady | DaemonFailed:
        """Its answer; a made-up failure where it ends or stays silent instead. Call once."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._ready_fd, "rb")
        )
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                return _parse(await reader.readline())
        except TimeoutError:
            return DaemonFailed(error=f"it was not ready within {READY_TIMEOUT_S:.0f} s")
        finally:
            transport.close()


def _parse(line: bytes) -> DaemonReady | DaemonFailed:
    if not line:
        return DaemonFailed(error="it ended before it was ready")
    kinds: tuple[type[DaemonReady | DaemonFailed], ...] = (DaemonReady, DaemonFailed)
    for kind in kinds:
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError:
            continue
    return DaemonFailed(error=f"it answered {line[:100]!r}")


def _order(assignment: Assignment, folder: RunFolder, port: int) -> launch.DaemonLaunch:
    config, me = assignment.config, assignment.me
    return launch.DaemonLaunch(
        run_name=folder.run_name,
        run_id=folder.run_id,
        run_dir=str(folder.run_dir),
        token=assignment.token,
        bind_host=config.bind_host,
        port=port or config.aggregator_port,
        is_port_required=port > 0 or config.is_port_required,
        nnodes=config.nnodes_min,
        nproc_per_node=config.num_local_ranks,
        finalize_timeout_s=config.finalize_timeout_s,
        settle_s=config.settle_s,
        has_history=config.has_history,
        created_ns=me.started_ns,
        launcher_pid=me.holder.pid,
        launcher_start_ticks=me.holder.start_ticks,
        is_token_offered=assignment.is_token_offered,
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
    argv = command.finalize_argv(python=sys.executable, run_dir=str(run_dir), reason=reason)
    try:
        process = DaemonCommand(argv, run_dir=run_dir, run_id=run_id)
    except OSError:
        return False
    spared.add(process.pid)
    try:
        code = await process.wait(timeout_s=timeout_s)
        if code is None:
            await process.end(signal.SIGKILL, timeout_s=_KILL_S)
        return code == 0
    finally:
        process.close()
