"""The launcher's side of the hand-over, small: a real Unix socket, real pipes, a real memfd ring.

One `StubLauncher` serves any number of workers; `run` starts one and waits for it, `start` leaves it running.
`die` is what the kernel does to a killed launcher: every descriptor of it is closed.
"""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.harness.torchrun import clean_environment
from traceml_client.protocol import handover, ring
from traceml_client.protocol.environ import HANDOVER, RUN_NONCE
from traceml_client.protocol.frames import FrameReader, frame

WORKER = ("-u", "-m", "traceml_client.worker")
DEADLINE_S = 30.0


@dataclass(slots=True)
class Captured:
    """One pipe and what has come out of it."""

    read_fd: int
    data: bytearray = field(default_factory=bytearray)
    thread: threading.Thread | None = None

    def follow(self) -> None:
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def _copy(self) -> None:
        while chunk := os.read(self.read_fd, 65536):
            self.data += chunk

    def close(self) -> None:
        if self.thread:
            self.thread.join(DEADLINE_S)
            os.close(self.read_fd)


class GrantedRank:
    """One worker that took its pipes and ring."""

    def __init__(self, request: handover.HandoverRequest, grant: handover.HandoverGrant, connection: socket.socket):
        self.request = request
        self.grant = grant
        self.connection = connection
        self.ring_fd = os.memfd_create("ring", os.MFD_CLOEXEC)
        os.posix_fallocate(self.ring_fd, 0, ring.ring_bytes())
        header = bytearray(ring.ring_bytes())
        ring.initialize(memoryview(header))
        os.pwrite(self.ring_fd, header[: ring.HEADER_BYTES], 0)
        self.stdout = Captured(-1)
        self.stderr = Captured(-1)

    def read_ring(self) -> ring.RingReader:
        """A copy of the ring as it is now."""
        return ring.RingReader(os.pread(self.ring_fd, ring.ring_bytes(), 0))

    def words(self) -> tuple[bytes, bytes]:
        """What has come out of both pipes."""
        return bytes(self.stdout.data), bytes(self.stderr.data)

    def send_grant(self, *, is_followed: bool) -> None:
        fds = [self.ring_fd]
        if self.grant.has_streams:
            (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
            self.stdout.read_fd, self.stderr.read_fd = out_r, err_r
            fds += [out_w, err_w, out_r, err_r]
        payload = frame(handover.encode_payload(self.grant))
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        self.connection.sendmsg([payload], ancillary)
        if self.grant.has_streams:
            os.close(out_w)
            os.close(err_w)
        if self.grant.has_streams and is_followed:
            self.stdout.follow()
            self.stderr.follow()

    def close(self) -> None:
        self.connection.close()
        for stream in (self.stdout, self.stderr):
            if stream.thread:
                stream.close()
            elif stream.read_fd >= 0:
                os.close(stream.read_fd)
        os.close(self.ring_fd)


@dataclass(frozen=True, slots=True)
class FinishedWorker:
    exit_code: int
    stdout: bytes
    stderr: bytes
    outside: bytes
    """What reached the streams that torchrun would have given it: nothing, where it took its pipes."""
    ring: ring.RingReader


class StubLauncher:
    """Grants every worker that connects. Leaving its block ends what it started and waits for the pipes' ends.

    Args:
        directory: for the socket and the ranks' folders.
        daemon: (host, port, token) that ranks are told; port 0 for none.
        is_following: False leaves the pipes unread, as a launcher that is stopped or dead does.
    """

    def __init__(
        self,
        directory: Path,
        *,
        has_streams: bool = True,
        daemon: tuple[str, int, str] = ("127.0.0.1", 0, ""),
        is_following: bool = True,
        trace_max_steps: int = -1,
    ) -> None:
        self.directory = directory
        self.path = directory / "launcher.sock"
        self.ranks: list[GrantedRank] = []
        self._grant_fields: dict[str, Any] = {
            "run_id": "run-id",
            "run_name": "run",
            "node_index": 0,
            "has_streams": has_streams,
            "daemon_host": daemon[0],
            "daemon_port": daemon[1],
            "token": daemon[2],
            "trace_max_steps": trace_max_steps,
        }
        self._is_following = is_following
        self._processes: list[subprocess.Popen[bytes]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._granted = threading.Condition()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> StubLauncher:
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            with process:  # closes its pipes and waits for it
                pass
        self._stop_listening()
        for rank in self.ranks:
            rank.close()

    def environment(self, *, rank: int = 0, world_size: int = 1, **extra: str) -> dict[str, str]:
        """What a worker of this launcher finds in its environment."""
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
        numbers = {name: str(number) for name, number in places.items()}
        return clean_environment(**{HANDOVER: str(self.path), RUN_NONCE: "run-id", **numbers, **extra})

    def start(
        self, arguments: Sequence[str], *, cwd: Path, options: Sequence[str] = (), **popen: Any
    ) -> subprocess.Popen[bytes]:
        """Start a worker with these arguments; its outside streams are pipes."""
        popen.setdefault("env", self.environment())
        command = [sys.executable, *options, *WORKER, *arguments]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=cwd, **{**pipes, **popen})
        self._processes.append(process)
        return process

    def run(self, arguments: Sequence[str], *, cwd: Path, text_in: bytes = b"", **popen: Any) -> FinishedWorker:
        """Start a worker and wait for its end and for its last words."""
        process = self.start(arguments, cwd=cwd, stdin=subprocess.PIPE, **popen)
        outside, _ = process.communicate(text_in, timeout=DEADLINE_S)
        self.wait_for_rank(process.pid)
        self.wait_for_streams()
        lives = [rank for rank in self.ranks if rank.request.pid == process.pid]  # it may have executed itself anew
        stdout, stderr = (b"".join(streams) for streams in zip(*(life.words() for life in lives), strict=True))
        return FinishedWorker(process.returncode, stdout, stderr, outside, lives[-1].read_ring())

    def wait_for_rank(self, pid: int) -> GrantedRank:
        """The rank of this process, once it has taken its pipes."""
        with self._granted:
            assert self._granted.wait_for(lambda: any(r.request.pid == pid for r in self.ranks), DEADLINE_S)
            return next(rank for rank in self.ranks if rank.request.pid == pid)

    def wait_for_streams(self) -> None:
        """Until every rank's pipes are at their ends: nobody holds the writing ends any more."""
        for rank in self.ranks:
            for stream in (rank.stdout, rank.stderr):
                if stream.thread:
                    stream.thread.join(DEADLINE_S)

    def die(self) -> None:
        """Close everything, as the kernel does for a killed launcher. Rings stay: the tests read them."""
        self._stop_listening()
        for rank in self.ranks:
            rank.connection.close()
            for stream in (rank.stdout, rank.stderr):
                assert stream.thread is None, "a launcher that is to die must not follow its pipes"
                os.close(stream.read_fd)
                stream.read_fd = -1

    def _stop_listening(self) -> None:
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join(DEADLINE_S)
            self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._grant(connection)

    def _grant(self, connection: socket.socket) -> None:
        reader = FrameReader(max_frame_bytes=handover.MAX_HANDOVER_BYTES)
        payloads: list[bytes] = []
        while not payloads:
            payloads += [bytes(payload) for payload in reader.feed(connection.recv(65536))]
        request = handover.decode_request(payloads[0])
        attempt = sum(rank.request.local_rank == request.local_rank for rank in self.ranks)
        rank_dir = self.directory / "ranks" / f"rank_{request.rank}" / f"attempt_{attempt}"
        rank_dir.mkdir(parents=True)
        grant = handover.HandoverGrant(rank_dir=str(rank_dir), attempt=attempt, **self._grant_fields)
        rank = GrantedRank(request, grant, connection)
        with self._granted:
            self.ranks.append(rank)
            rank.send_grant(is_followed=self._is_following)
            self._granted.notify_all()
