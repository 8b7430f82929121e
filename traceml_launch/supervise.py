"""One node's launch from its first child to its last: what `traceml run` does once it knows what it was asked.

Order of starts: the warden (before any thread), the daemon, torchrun beside it. Order of ends: torchrun, its workers,
the reports, the daemon, what lingers, our last lines (`ending`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from traceml_client.protocol import environ, messages, proof
from traceml_client.protocol.errors import ConfigError, ProtocolError, Refused
from traceml_launch import command, ending
from traceml_launch.aggregator import own_daemon
from traceml_launch.aggregator.own_daemon import OwnDaemon
from traceml_launch.assignment import Assignment, LauncherIdentity
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.folder import ownership, peer_folder, run_folder, shared_token
from traceml_launch.folder.run_folder import RunFolder
from traceml_launch.node import Node
from traceml_launch.ranks.handover import HandoverServer
from traceml_launch.system import prctl
from traceml_launch.system.child import start_torchrun
from traceml_launch.system.signals import SignalDesk
from traceml_launch.system.warden import Warden, Watch
from traceml_launch.waiting import unless

EXIT_NO_TELEMETRY: Final = 1
"""`--on-missing-aggregator raise`: refused before training."""
EARLY_ANSWER_S: Final = 0.5
"""What a node waits for another node's daemon before torchrun starts: an answer that is there already, no more."""
WORKER_FILE: Final = "traceml_client/worker.py"


def run(config: LaunchConfig, *, torchrun_argv: Sequence[str] | None = None) -> int:
    """Train; return the command's exit code.

    Args:
        torchrun_argv: what to supervise in torchrun's place (tests).

    Raises:
        ConfigError: something that only this machine could tell is wrong; nothing was started, nothing is left.
    """
    _fill_standard_descriptors()
    with ownership.claimed(config) as is_owner:
        return _launch(config, is_owner, torchrun_argv)


def _launch(config: LaunchConfig, is_owner: bool, torchrun_argv: Sequence[str] | None) -> int:
    me = LauncherIdentity.of_this_process()
    folder = None
    if is_owner and not config.attach:
        folder = run_folder.reserve(config, holder=me.holder, now_ns=me.started_ns)
    else:
        peer_folder.check_joinable(config, now_ns=me.started_ns)
    offered = shared_token.offer(config, folder)
    warden = Warden.start()
    assignment = Assignment(
        config=config,
        me=me,
        is_owner=is_owner,
        folder=folder,
        token=config.token or offered or ("" if config.is_multi_node or config.attach else proof.new_token()),
        is_token_offered=bool(offered),
        nonce=folder.run_id if folder is not None else secrets.token_hex(16),
        warden=warden,
    )
    try:
        with asyncio.Runner() as runner:
            return runner.run(_supervise(assignment, torchrun_argv))
    except ConfigError:
        if folder is not None:
            run_folder.release(folder)
        raise
    finally:
        warden.dismiss()


async def _supervise(assignment: Assignment, torchrun_argv: Sequence[str] | None) -> int:
    """The steps of one launch, in their order."""
    node = Node(assignment)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: _say_loop_error(node, context))
    async with _opened(node) as server:
        _adopt_orphans(node)
        _start_telemetry(node)
        is_refused = await _is_refused(node)
        node.placement.begin()
        if is_refused:
            return await ending.never_started(node, exit_code=EXIT_NO_TELEMETRY)
        if not _start_torchrun(node, server, torchrun_argv or _argv(node)):
            return await ending.never_started(node)
        await _train(node)
        server.refuse_more()
        return await _end(node, server)


async def _train(node: Node) -> None:
    manifest, ended = node.manifest, node.telemetry.ended
    lease = asyncio.ensure_future(manifest.keep_lease(ended)) if manifest is not None else None
    try:
        await node.training.wait()
    finally:
        if lease is not None:
            lease.cancel()


@contextlib.asynccontextmanager
async def _opened(node: Node) -> AsyncIterator[HandoverServer]:
    """Everything that must be closed again, in an order in which nothing calls into what is closed."""
    desk = SignalDesk(on_stop=node.training.on_stop, on_suspend=node.training.on_suspend)
    desk.listen_to_warden(node.assignment.warden.report_fd)
    server = HandoverServer(
        workers=node.workers,
        streams=node.streams,
        place=node.place_for,
        grant=node.grant,
        on_problem=node.console.problem,
    )
    try:
        async with server:
            for notice in node.assignment.config.notices:
                node.console.say(notice)
            yield server
    finally:
        desk.close()
        await node.close()


def _start_telemetry(node: Node) -> None:
    config, folder = node.assignment.config, node.assignment.folder
    if config.is_disabled:
        node.telemetry.give_up("disabled")
    elif folder is not None:
        try:
            start = functools.partial(_start_daemon, node, folder)
            node.telemetry.own(start, host=own_daemon.own_host(config))
        except OSError as error:
            node.telemetry.fail(f"the aggregator cannot be started: {error.strerror}")
    else:
        node.telemetry.join(host=config.aggregator_host, port=config.aggregator_port)


def _start_daemon(node: Node, folder: RunFolder, port: int) -> OwnDaemon:
    """The first daemon, or the next one after its death, with the port that was told. Raises OSError."""
    if port and node.manifest is not None:
        node.manifest.hold()  # until the next one has started, which may take a while
    process = OwnDaemon(node.assignment, folder, port=port)
    node.spared.add(process.pid)
    node.assignment.warden.spare(process.pid)
    return process


async def _is_refused(node: Node) -> bool:
    """Whether training must not start without telemetry. Raises ConfigError where another node has our place."""
    config = node.assignment.config
    is_required = config.on_missing_aggregator == "raise" and not config.is_disabled
    is_own = node.assignment.folder is not None
    if is_own and not is_required:
        return False
    try:
        timeout_s = own_daemon.REQUIRED_S if is_required else EARLY_ANSWER_S
        welcome = await unless(node.telemetry.welcome(timeout_s=timeout_s), node.training.stopped)
    except Refused as error:
        if error.reason == messages.SLOT_TAKEN:
            raise ConfigError(f"--node-rank {config.node_rank}: {error.detail}") from None
        welcome = None
    except ProtocolError:
        welcome = None
    if is_required and welcome is None and not node.training.stopped.is_set():
        node.console.problem("--on-missing-aggregator raise: there is no aggregator, training was not started")
        return True
    return False


def _start_torchrun(node: Node, server: HandoverServer, argv: Sequence[str]) -> bool:
    """False where a signal came first, or where there is no such program."""
    if node.training.stopped.is_set():
        return False
    folder = node.assignment.folder
    stdout_fd, stderr_fd = _torchrun_pipes(node)
    try:
        torchrun = start_torchrun(
            argv,
            environ=command.torchrun_environment(
                node.config,
                environ=environ.snapshot(),
                handover_path=server.path,
                run_id=node.assignment.nonce,
            ),
            stdout_fd=stdout_fd,
            stderr_fd=stderr_fd,
            announce=lambda pid: node.assignment.warden.order(_watch_order(node, pid, server)),
        )
    except OSError as error:
        node.console.problem(f"torchrun cannot be started: {error}")
        return False
    finally:
        for fd in (stdout_fd, stderr_fd):
            if fd is not None:
                os.close(fd)
    node.assignment.warden.wait_until_joined()
    node.foreground.lend(torchrun.pid)
    node.training.began(torchrun)
    if folder is not None:
        run_folder.confirm(folder)
    return True


def _watch_order(node: Node, torchrun_pid: int, server: HandoverServer) -> Watch:
    daemon = node.telemetry.process
    return Watch(
        torchrun_pid=torchrun_pid,
        nonce=node.assignment.nonce,
        daemon_pid=daemon.pid if daemon is not None else 0,
        socket_path=server.path,
        grace_s=node.training.plan.torchrun_grace_s(),
        linger_s=node.config.linger_s,
    )


def _argv(node: Node) -> list[str]:
    folder, worker_file = node.assignment.folder, Path(environ.__file__).parents[2] / WORKER_FILE
    here = Path.cwd() / worker_file.parent.name
    return command.torchrun_argv(
        node.config,
        python=sys.executable,
        worker_file=str(worker_file),
        environ=environ.snapshot(),
        run_name=folder.run_name if folder is not None else node.config.run_name,
        is_name_taken=here.with_suffix(".py").exists()
        or (here != worker_file.parent and (here / "__init__.py").exists()),
    )


def _torchrun_pipes(node: Node) -> tuple[int | None, int | None]:
    """Write ends for torchrun's own streams; null where it inherits the terminal."""
    if node.streams is None:
        return None, None
    stdout_read, stdout_write = os.pipe()
    stderr_read, stderr_write = os.pipe()
    node.streams.follow(stdout_read, "stdout")
    node.streams.follow(stderr_read, "stderr", tap=node.torchrun_stderr.feed)
    return stdout_write, stderr_write


def _adopt_orphans(node: Node) -> None:
    try:
        prctl.become_subreaper()
    except OSError as error:
        node.console.problem(f"orphans of this run cannot be adopted: {error.strerror}")


async def _end(node: Node, server: HandoverServer) -> int:
    try:
        return await ending.end(node, late_pids=server.late_pids)
    except Exception as error:  # noqa: BLE001 - the launcher's outermost boundary: training's exit code is owed
        node.console.problem(f"the end of the run was not recorded: {type(error).__name__}: {error}")
        return ending.exit_code(node)


def _say_loop_error(node: Node, context: dict[str, Any]) -> None:
    """An error of ours in a callback: training goes on, and it is said."""
    error = context.get("exception")
    what = f"{type(error).__name__}: {error}" if error is not None else context.get("message")
    node.console.problem(f"an error of TraceML itself: {what}")


def _fill_standard_descriptors() -> None:
    """A closed 0, 1 or 2 would be given to one of our pipes, and training's words would end up there."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
