"""The daemon's side of a rank's connection, on a plain socket in a thread: made to be slow, deaf, rude or gone.

It keeps every record by its sequence number, as the real one does, so that what arrived twice is seen.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from traceml_client.protocol import messages
from traceml_client.protocol.codec import decode_to_daemon, encode
from traceml_client.protocol.columns import unpack
from traceml_client.protocol.frames import FrameReader
from traceml_client.protocol.proof import is_proven, new_nonce

DEADLINE_S = 10.0


@dataclass(slots=True)
class Behaviour:
    """May be changed while it serves."""

    is_reading: bool = True
    """False: connections are accepted by the kernel and nobody reads them, as of a stopped process."""
    is_acking: bool = True
    refusal: tuple[str, str] | None = None
    version: int = messages.PROTOCOL_MAJOR
    token: str = ""
    answers: Callable[[messages.ToDaemon], bytes | None] = lambda message: None
    """Bytes to send for a message in place of the proper answer."""


@dataclass(slots=True)
class Heard:
    """What arrived, over all connections."""

    hellos: list[messages.RankHello] = field(default_factory=list)
    records: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))
    """Per stream: sequence to end time."""
    num_repeated: int = 0
    num_frames: int = 0
    largest_frame: int = 0
    failures: list[messages.RankFailed] = field(default_factory=list)
    markers: list[messages.RankFinished] = field(default_factory=list)
    pings: list[messages.Ping] = field(default_factory=list)


class StubDaemon:
    """Listens until the block is left. `port` stays the same over `stop` and `restart`."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.heard = Heard()
        self.port = 0
        self.changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> StubDaemon:
        self.restart()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def num_steps(self) -> int:
        return len(self.heard.records[0])

    def restart(self) -> None:
        """Listen (again)."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)

    def stop(self) -> None:
        """As SIGKILL: every socket is closed."""
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        self._threads.clear()

    def cut(self) -> None:
        """End every connection, go on listening."""
        with self.changed:
            self.behaviour.is_reading = True
            self.changed.notify_all()
            connections, self._connections = self._connections, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def set(self, **changes: object) -> None:
        with self.changed:
            for name, value in changes.items():
                setattr(self.behaviour, name, value)
            self.changed.notify_all()

    def wait_for(self, is_true: Callable[[Heard], object], reason: str, *, within_s: float = DEADLINE_S) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: is_true(self.heard), within_s), f"not within {within_s} s: {reason}"

    def _start(self, target: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            nonce = new_nonce()
            self._wait_until_reading()
            connection.sendall(encode(messages.Challenge(self.behaviour.version, nonce)))
            reader = FrameReader()
            while True:
                self._wait_until_reading()
                if not (data := connection.recv(65536)):
                    return
                for payload in reader.feed(data):
                    answer = self._take(decode_to_daemon(payload), nonce, len(payload))
                    if answer:
                        connection.sendall(answer)

    def _wait_until_reading(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.behaviour.is_reading)

    def _take(self, message: messages.ToDaemon, nonce: bytes, size: int) -> bytes:
        with self.changed:
            self.heard.num_frames += 1
            self.heard.largest_frame = max(self.heard.largest_frame, size)
            answer = self._note(message, nonce)
            self.changed.notify_all()
        own = self.behaviour.answers(message)
        return answer if own is None else own

    def _note(self, message: messages.ToDaemon, nonce: bytes) -> bytes:
        match message:
            case messages.RankHello():
                return self._welcome(message, nonce)
            case messages.Records():
                return self._store(message)
            case messages.RankFinished():
                self.heard.markers.append(message)
                return encode(messages.Ack(messages.MARKER_STREAM, 0)) if self.behaviour.is_acking else b""
            case messages.RankFailed():
                self.heard.failures.append(message)
            case messages.Ping():
                self.heard.pings.append(message)
                return encode(messages.Pong(message.sent_ns, time.time_ns()))
        return b""

    def _welcome(self, hello: messages.RankHello, nonce: bytes) -> bytes:
        self.heard.hellos.append(hello)
        if self.behaviour.refusal:
            return encode(messages.Refused(*self.behaviour.refusal))
        claims = ("rank", hello.run, hello.node_index, hello.local_rank, hello.attempt)
        if not is_proven(self.behaviour.token, nonce, hello.proof, *claims):
            return encode(messages.Refused(messages.BAD_TOKEN, "not proven"))
        return encode(messages.Welcome("run-id", "run", max(0, hello.node_index), max(0, hello.attempt), self._next()))

    def _store(self, message: messages.Records) -> bytes:
        ends, _, _ = unpack(message.fmt, message.count, message.columns)
        kept = self.heard.records[message.stream]
        for seq, end_ns in enumerate(ends, message.first_seq):
            self.heard.num_repeated += seq in kept
            kept[seq] = end_ns
        ack = messages.Ack(message.stream, message.first_seq + message.count)
        return encode(ack) if self.behaviour.is_acking else b""

    def _next(self) -> tuple[int, int]:
        steps, samples = (max(kept, default=-1) + 1 for kept in self.heard.records)
        return steps, samples
