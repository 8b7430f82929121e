"""Assembly of `traceml serve`: a daemon of its own that takes the runs that come."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from typing import Final

import msgspec

from traceml_client.protocol import environ
from traceml_client.protocol.errors import ConfigError
from traceml_client.protocol.manifest import LeaseHolder, lease_holder
from traceml_daemon.clock import LoopClock
from traceml_daemon.config import ServeConfig
from traceml_daemon.errors import CannotStart
from traceml_daemon.notify import ServiceManager
from traceml_daemon.peers.rejections import Rejections
from traceml_daemon.peers.server import Server
from traceml_daemon.run.replacing import read_config
from traceml_daemon.run.runs import ServedRuns
from traceml_daemon.run.session import Session
from traceml_daemon.service import max_connections, prepare_process, run_loop, server_tls, stop_on_signals

_CLOSING_S: Final = 10.0
"""From the last report to the exit, for the service manager."""

_log = logging.getLogger("traceml_daemon")


class ServeReady(msgspec.Struct, frozen=True, kw_only=True):
    """The ready line of `serve`, one JSON document on standard output once peers are taken."""

    port: int
    host: str
    pid: int
    logs_dir: str
    run_name: str | None = None
    run_dir: str | None = None
    """Both null until the first peer where no `--run-name` was given."""


def serve(config_fd: int) -> int:
    """Serve until SIGTERM or SIGINT, then finalize what is there. Returns the exit code."""
    config = read_config(config_fd)
    prepare_process()
    try:
        run_loop(_serve(config, lease_holder(), ServiceManager(environ.snapshot())))
    except (ConfigError, CannotStart) as error:
        print(f"traceml-daemon: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


async def _serve(config: ServeConfig, holder: LeaseHolder, manager: ServiceManager) -> None:
    clock = LoopClock()
    rejections = Rejections()
    runs = ServedRuns(config, clock=clock, holder=holder, rejections=rejections)
    tls = server_tls(config.tls_cert, config.tls_key)
    server = Server(runs, clock, rejections, max_connections=max_connections(), tls=tls)
    stopped = asyncio.Event()
    try:
        port = await server.listen(config.bind_host, config.port)
        default = await runs.open_default() if config.run_name is not None else None
        if default is not None:
            await default.files.flush()  # whoever has read our ready line finds its manifest
        gc.freeze()
        with stop_on_signals(stopped.set):
            _say_ready(config, port, default)
            manager.say_ready(status=f"Taking peers on {config.bind_host}:{port}")
            await stopped.wait()
            manager.say_stopping(within_s=config.finalize_timeout_s + _CLOSING_S)
            server.stop_listening()
            await runs.stop_and_wait()
    finally:
        await server.close()
        await runs.close()
        manager.close()


def _say_ready(config: ServeConfig, port: int, default: Session | None) -> None:
    ready = ServeReady(
        port=port,
        host=config.bind_host,
        pid=os.getpid(),
        logs_dir=str(config.logs_dir),
        run_name=default.config.run_name if default else None,
        run_dir=str(default.config.run_dir) if default else None,
    )
    try:
        os.write(sys.stdout.fileno(), msgspec.json.encode(ready) + b"\n")
    except OSError as error:  # a full disk, a reader that is gone: who wants to be served need not know
        _log.warning("the ready line could not be written: %s", error.strerror)
