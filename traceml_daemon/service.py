"""Assembly of a daemon for one run: start-up, the ready line, signals, the end.

Start-up is on the critical path of every `traceml run`, so nothing is imported here that the first record does not
need.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import uvloop

from traceml_client.protocol.errors import ConfigError
from traceml_client.protocol.launch import DaemonFailed, DaemonLaunch, DaemonReady
from traceml_client.protocol.manifest import LeaseHolder, lease_holder
from traceml_client.protocol.process_identity import start_ticks
from traceml_daemon.clock import LoopClock
from traceml_daemon.config import RunConfig
from traceml_daemon.core import events as ev
from traceml_daemon.errors import CannotStart
from traceml_daemon.peers.rejections import Rejections
from traceml_daemon.peers.server import MAX_CONNECTIONS, Server
from traceml_daemon.run.runs import Runs
from traceml_daemon.run.session import Session

if TYPE_CHECKING:
    import ssl

_RESERVED_FDS: Final = 64
"""Descriptors that connections leave for files."""
_GC_THRESHOLD: Final = 20_000
"""A queue of records is tens of thousands of tuples without cycles: looking through them costs more than it finds."""

_T = TypeVar("_T")


def supervise(config_fd: int, ready_fd: int) -> int:
    """Serve one launcher's run until it is finalized. Returns the exit code."""
    with os.fdopen(config_fd, "rb") as file:
        launch = msgspec.json.decode(file.read(), type=DaemonLaunch)
    with os.fdopen(ready_fd, "wb", buffering=0) as ready:
        prepare_process()
        try:
            run_loop(_serve_one(launch, lease_holder(), _open_launcher(launch), lambda line: _tell(ready, line)))
        except CannotStart as error:
            logging.getLogger("traceml_daemon").error("%s", error)
            _tell(ready, DaemonFailed(str(error), error.is_port_taken))
            return 1
    return 0


def _open_launcher(launch: DaemonLaunch) -> int:
    """A pidfd of the launcher that started us; -1 where it is gone already."""
    try:
        pidfd = os.pidfd_open(launch.launcher_pid)
    except OSError:
        return -1
    if start_ticks(launch.launcher_pid) == launch.launcher_start_ticks:
        return pidfd
    os.close(pidfd)
    return -1


async def _serve_one(
    launch: DaemonLaunch, holder: LeaseHolder, launcher_fd: int, tell: Callable[[DaemonReady], None]
) -> None:
    clock = LoopClock()
    config = RunConfig.from_launch(launch)
    rejections = Rejections()
    runs = Runs(token=config.token, clock=clock, holder=holder, rejections=rejections)
    runs.is_token_offered = config.is_token_offered
    tls = server_tls(launch.tls_cert, launch.tls_key)
    server = Server(runs, clock, rejections, max_connections=max_connections(), tls=tls)
    try:
        session = await runs.open(config)
        port = await server.listen(launch.bind_host, launch.port, is_port_required=launch.is_port_required)
        session.on_seal = server.stop_listening
        gc.freeze()
        with stop_on_signals(runs.stop), _watch_launcher(session, launcher_fd):
            tell(DaemonReady(port, os.getpid()))
            await session.finalized
    finally:
        await server.close()
        await runs.close()


@contextlib.contextmanager
def _watch_launcher(session: Session, pidfd: int) -> Iterator[None]:
    """Notice the end of the launcher that started us also where it never came to connect."""
    loop = asyncio.get_running_loop()

    def lose() -> None:
        if pidfd >= 0:
            loop.remove_reader(pidfd)
        if not session.roster.nodes:
            session.apply(ev.NodeJoined(0, True, session.config.nproc_per_node), ev.NodeLost(0))

    if pidfd < 0:
        lose()
        yield
        return
    loop.add_reader(pidfd, lose)
    try:
        yield
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


# --- parts that `serving` uses as well ------------------------------------------------------------------------------


def prepare_process() -> None:
    """Diagnostics to standard error, as many descriptors as we may have, and a collector that stays out of the way."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(_GC_THRESHOLD, 20, 20)
    os.umask(0o077)


def max_connections() -> int:
    """As many as there are descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(MAX_CONNECTIONS, soft - _RESERVED_FDS))


def server_tls(cert: str, key: str) -> ssl.SSLContext | None:
    """Null without a certificate. Blocks. Raises CannotStart."""
    if not cert:
        return None
    from traceml_client.protocol.tls import server_context

    try:
        return server_context(cert, key)
    except ConfigError as error:
        raise CannotStart(str(error)) from None


def run_loop(work: Coroutine[Any, Any, _T]) -> _T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT; a daemon has no terminal, so a hang-up means nothing."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _tell(ready: Any, line: DaemonReady | DaemonFailed) -> None:
    """One line of JSON to the launcher; one that is gone is noticed elsewhere."""
    with contextlib.suppress(OSError):
        ready.write(msgspec.json.encode(line) + b"\n")
