"""What a rank takes from its node's launcher before user code runs, and what it does when that launcher is gone.

The rank keeps the read ends of its own two pipes: while they are open, printing into a pipe whose launcher was killed
is no EPIPE. Once the launcher's socket hangs up, the rest of both pipes is copied to the rank's log files and standard
output and error are moved to those files.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import select
import socket
from dataclasses import dataclass, field

import msgspec

from traceml_client.descriptors import HeldDescriptor
from traceml_client.protocol import handover as wire
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.frames import FrameReader, frame

_TIMEOUT_S = 30.0
"""A launcher on a busy node answers its 8 ranks within milliseconds; one that takes longer is not going to."""
_STDOUT, _STDERR = 1, 2
_COPY_BYTES = 64 * 1024
_MAX_COPIES = 64
"""Per pipe and call: 4 MiB, so that a script that prints without pause cannot keep us here."""
_SETTLE_MS = 50
"""How long a writer that was blocked may take to run again, on a busy node."""
_MAX_SETTLES = 20


@dataclass(slots=True)
class CapturedStream:
    """One of the rank's two standard streams: where it goes now, and where it goes when the launcher is gone."""

    number: int
    read_end: HeldDescriptor
    log: HeldDescriptor | None
    """Null where it could not be opened: then the pipe is emptied into nothing, so that the rank is never blocked."""

    def copy_rest(self) -> None:
        """Move what is in the pipe to the log file, without waiting for more."""
        for _ in range(_MAX_COPIES):
            if not self.read_end.is_intact():
                return
            try:
                data = os.read(self.read_end.fd, _COPY_BYTES)
            except OSError:  # nothing there now; or the script has closed it this instant
                return
            if not data:
                self.read_end.close()
                return
            self._append(data)

    def let_writers_through(self) -> None:
        """Copy until nothing more comes: whoever was blocked by a full pipe has written all of that write now."""
        for _ in range(_MAX_SETTLES):
            if not self.read_end.is_intact():
                return  # it is at its end: nobody can write into it any more
            poller = select.poll()
            poller.register(self.read_end.fd, select.POLLIN)
            if not poller.poll(_SETTLE_MS):
                return
            self.copy_rest()

    def move_to_log(self) -> None:
        """Let the standard stream itself write to the log file, unless the script has put something else there."""
        if not (self.log and self.log.is_intact() and self.read_end.is_behind(self.number)):
            return
        if self.read_end.is_intact():
            _copy_and_move(self.read_end.fd, self.log.fd, self.number)
        else:
            os.dup2(self.log.fd, self.number, inheritable=True)

    def _append(self, data: bytes) -> None:
        if self.log and self.log.is_intact():
            with contextlib.suppress(OSError):  # a full volume: these bytes are lost, the rank goes on
                os.write(self.log.fd, data)

    def close(self) -> None:
        self.read_end.close()
        if self.log:
            self.log.close()


@dataclass(slots=True)
class Handover:
    """What the launcher granted. The descriptors are ours until `close`."""

    grant: wire.HandoverGrant
    ring: HeldDescriptor
    launcher: HeldDescriptor
    """The socket; readable means that the launcher is gone."""
    streams: list[CapturedStream] = field(default_factory=list)
    is_launcher_gone: bool = False

    def has_launcher_hung_up(self) -> bool:
        """Whether the launcher's socket, which is readable, is at its end."""
        if not self.launcher.is_intact():
            return False
        try:
            return not os.read(self.launcher.fd, _COPY_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def outlive_launcher(self) -> None:
        """The launcher's socket hung up: from here on both streams go to the rank's own log files."""
        self.is_launcher_gone = True
        self.launcher.close()
        for stream in self.streams:
            with contextlib.suppress(OSError):  # the script may close any of them at any instant
                if stream.read_end.is_intact():
                    os.set_blocking(stream.read_end.fd, False)
                    stream.copy_rest()
                    stream.let_writers_through()
                stream.move_to_log()
                stream.copy_rest()

    def copy_rest(self) -> None:
        """Children of the rank still write into the pipes: keep emptying them once the launcher is gone."""
        for stream in self.streams:
            stream.copy_rest()

    def close(self) -> None:
        self.ring.close()
        self.launcher.close()
        for stream in self.streams:
            stream.close()


def take(path: str, request: wire.HandoverRequest) -> Handover:
    """Ask the launcher at `path` for this rank's ring and pipes, and put the pipes on descriptors 1 and 2.

    Raises:
        OSError: nobody answers there, or a descriptor cannot be moved.
        RemoteProtocolError: the answer is not a grant, or lacks descriptors.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(path)
        connection.sendall(frame(wire.encode_payload(request)))
        grant, fds = _receive_grant(connection)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return _install(grant, fds, connection.detach())


def _receive_grant(connection: socket.socket) -> tuple[wire.HandoverGrant, list[int]]:
    reader = FrameReader(max_frame_bytes=wire.MAX_HANDOVER_BYTES)
    fds: list[int] = []
    try:
        while True:
            data, ancillary, _, _ = connection.recvmsg(
                _COPY_BYTES, socket.CMSG_SPACE(4 * wire.NUM_FDS_WITH_STREAMS), socket.MSG_CMSG_CLOEXEC
            )
            fds += _received_fds(ancillary)
            if not data:
                raise RemoteProtocolError("the launcher hung up before it granted anything")
            for payload in reader.feed(data):
                return _decode_grant(payload, len(fds)), fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _received_fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _decode_grant(payload: memoryview, num_fds: int) -> wire.HandoverGrant:
    try:
        grant = wire.decode_grant(payload)
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"the launcher's grant is damaged: {error}") from None
    expected = wire.NUM_FDS_WITH_STREAMS if grant.has_streams else wire.NUM_FDS_WITHOUT_STREAMS
    if num_fds != expected:
        raise RemoteProtocolError(f"the launcher granted {num_fds} descriptors, not {expected}")
    return grant


def _install(grant: wire.HandoverGrant, fds: list[int], launcher_fd: int) -> Handover:
    """Put the pipes on 1 and 2 first: whatever fails later, the rank's words are captured."""
    if grant.has_streams:
        os.dup2(fds[wire.STDOUT_WRITE_FD], _STDOUT, inheritable=True)
        os.dup2(fds[wire.STDERR_WRITE_FD], _STDERR, inheritable=True)
        os.close(fds[wire.STDOUT_WRITE_FD])
        os.close(fds[wire.STDERR_WRITE_FD])
    taken = Handover(grant=grant, ring=HeldDescriptor(fds[wire.RING_FD]), launcher=HeldDescriptor(launcher_fd))
    if grant.has_streams:
        for number, name, index in (
            (_STDOUT, "stdout.log", wire.STDOUT_READ_FD),
            (_STDERR, "stderr.log", wire.STDERR_READ_FD),
        ):
            log = _open_log(os.path.join(grant.rank_dir, name))
            taken.streams.append(CapturedStream(number, HeldDescriptor(fds[index]), log))
    return taken


def _copy_and_move(read_end: int, log: int, number: int) -> None:
    """Empty the pipe into the log and put the log on `number`, while no other Python thread can write.

    These calls keep the interpreter's lock, unlike those of `os`: a line whose first half is in the pipe when its
    second half goes to the file would otherwise end up the wrong way round.
    """
    libc, buffer = ctypes.PyDLL(None), ctypes.create_string_buffer(_COPY_BYTES)

    def copy() -> None:
        for _ in range(_MAX_COPIES):
            if (num_bytes := libc.read(read_end, buffer, _COPY_BYTES)) <= 0:
                return
            libc.write(log, buffer, num_bytes)

    copy()
    libc.dup2(log, number)
    copy()


def _open_log(path: str) -> HeldDescriptor | None:
    try:
        return HeldDescriptor(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:
        return None
