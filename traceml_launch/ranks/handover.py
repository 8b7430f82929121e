"""Gives each worker its pipes, its ring and the way to the daemon, over a Unix socket, before user code runs.

The socket lives in a private folder, and the kernel says who connects. Every connection stays open: its hang-up tells
a rank that its launcher is gone. A failure here costs telemetry or capture of one rank, never its training.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from traceml_client.protocol import environ, launch
from traceml_client.protocol import handover as wire
from traceml_client.protocol.errors import ConfigError, ProtocolError
from traceml_client.protocol.frames import FrameReader, frame
from traceml_client.protocol.process_identity import start_ticks
from traceml_launch.folder.placement import Place
from traceml_launch.folder.run_folder import make_dirs
from traceml_launch.output.streams import STREAM_NAMES, NodeStreams
from traceml_launch.ranks.ring_memory import RingMemory
from traceml_launch.ranks.workers import Worker, WorkerTable
from traceml_launch.system import pidfds, processes

REQUEST_TIMEOUT_S: Final = 10.0
"""A worker sends its request at once; whoever does not is none."""
_READ_BYTES: Final = 4096
_CREDENTIALS: Final = struct.Struct("iII")
_BACKLOG: Final = 1024
_LONGEST_FOLDER: Final = 70
"""The kernel takes 107 bytes for the path of a socket; batch systems like long TMPDIRs."""


class HandoverServer:
    """An async context manager; `path` is what workers connect to."""

    def __init__(
        self,
        *,
        workers: WorkerTable,
        streams: NodeStreams | None,
        place: Callable[[wire.HandoverRequest], Awaitable[Place]],
        grant: Callable[[Worker, Place], wire.HandoverGrant],
        on_problem: Callable[[str], None],
    ) -> None:
        """`place` may wait for the daemon, but not for ever; `grant` is called before the worker goes on."""
        self._workers = workers
        self._streams = streams
        self._place = place
        self._grant = grant
        self._on_problem = on_problem
        self._folder = _make_private_folder()
        self.path = os.path.join(self._folder, "handover")
        self._socket = socket.socket(socket.AF_UNIX)
        self._connections: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.late_pids: set[int] = set()
        """Workers that came after `refuse_more`."""
        self._is_refusing = False

    async def __aenter__(self) -> HandoverServer:
        self._socket.bind(self.path)
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._accept)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._loop.remove_reader(self._socket.fileno())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in (self._socket, *self._connections):
            each.close()
        os.unlink(self.path)
        os.rmdir(self._folder)

    def refuse_more(self) -> None:
        """torchrun has ended: a worker that comes now is an orphan, and is only remembered."""
        self._is_refusing = True

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._connections.append(connection)
        if self._is_refusing:
            self.late_pids.add(_peer_pid(connection))
            return
        task = self._loop.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await self._receive(connection)
            self._give(connection, request, await self._place(request))
        except (OSError, ProtocolError, msgspec.DecodeError, TimeoutError) as error:
            self._on_problem(f"a worker got no pipes and no recorder from its launcher: {error or 'it sent nothing'}")
            self._connections.remove(connection)
            connection.close()

    async def _receive(self, connection: socket.socket) -> wire.HandoverRequest:
        reader = FrameReader(max_frame_bytes=wire.MAX_HANDOVER_BYTES)
        while data := await self._loop.sock_recv(connection, _READ_BYTES):
            for payload in reader.feed(data):
                request = wire.decode_request(payload)
                # The kernel's word for the pid; a request cannot make us watch somebody else's process.
                pid = _peer_pid(connection)
                return msgspec.structs.replace(request, pid=pid, start_ticks=start_ticks(pid))
        raise ConnectionError("it hung up")

    def _give(self, connection: socket.socket, request: wire.HandoverRequest, place: Place) -> None:
        worker = self._workers.executed_anew(request)
        if worker is None:
            worker = self._admit(request, place, RingMemory())
            self._workers.add(worker)
        assert worker.ring is not None
        grant = self._grant(worker, place)
        fds = [worker.ring.fd]
        if grant.has_streams:
            fds += self._make_pipes(worker)
        try:
            socket.send_fds(connection, [frame(wire.encode_payload(grant))], fds)
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def _admit(self, request: wire.HandoverRequest, place: Place, memory: RingMemory) -> Worker:
        attempt = self._workers.next_attempt(request.local_rank)
        rank_dir = place.run_dir / launch.layout_rank_dir(place.node_index, request.rank, attempt)
        try:
            make_dirs(rank_dir, option="--logs-dir")
        except ConfigError as error:
            # Its log files cannot be opened either, which is counted there; the rank trains on.
            self._on_problem(str(error))
        pidfd = pidfds.open_pidfd(request.pid)
        return Worker(
            request=request,
            attempt=attempt,
            rank_dir=rank_dir,
            ring=memory,
            pidfd=pidfd,
            started_ns=time.time_ns(),
            error_file=processes.variable_of(request.pid, environ.ERROR_FILE),
        )

    def _make_pipes(self, worker: Worker) -> list[int]:
        """Follow two new pipes; return the descriptors for the worker in the grant's order.

        What torchrun sent to the null device (`--local-ranks-filter`) is not for the terminal.
        """
        assert self._streams is not None
        write_ends, read_ends = [], []
        for fd, name in enumerate(STREAM_NAMES, 1):
            is_shown = not processes.is_discarding(worker.request.pid, fd)
            read_end, write_end = os.pipe()
            # An open file of our own: non-blocking for us, while the worker's copy stays as it expects it.
            ours = os.open(f"/proc/self/fd/{read_end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._streams.follow(ours, name, own_file=worker.rank_dir / f"{name}.log", is_shown=is_shown)
            write_ends.append(write_end)
            read_ends.append(read_end)
        return write_ends + read_ends


def _make_private_folder() -> str:
    """Mode 0700, with a path that leaves room for a socket's name. Raises OSError."""
    preferred = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="traceml-", dir=preferred if len(preferred) < _LONGEST_FOLDER else "/tmp")


def _peer_pid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])
