"""One peer's TCP connection: bytes to messages on the loop's own callbacks, no task and no await per frame.

All connections read into one shared buffer; whole frames are decoded in place and handed to the connection's peer: it
is a stranger until its hello is accepted, then a rank or a node. What breaks the wire rules ends the connection and is
counted; it never gets further than this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, Protocol, cast

from traceml_client.protocol.codec import decode_to_daemon, encode
from traceml_client.protocol.errors import FrameTooLarge, RemoteProtocolError, TlsFailed
from traceml_client.protocol.frames import MAX_FRAME_BYTES, FrameReader
from traceml_client.protocol.messages import TLS_REQUIRED, FromDaemon, Refused, ToDaemon
from traceml_daemon.errors import NotAdmitted

if TYPE_CHECKING:
    from traceml_client.protocol.tls import TlsStream
    from traceml_daemon.peers.server import Server

MAX_HELLO_BYTES: Final = 4096
"""What a stranger may send at once; a hello is 300 bytes."""
MAX_UNREAD_BYTES: Final = 256 << 10
"""Answers that a peer leaves unread before it is cut off: 20,000 acknowledgements."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))
"""A host that is gone is known in 11 s; one whose processes are stopped still answers."""


class Peer(Protocol):
    """Who is at the other end."""

    def receive(self, message: ToDaemon) -> None:
        """Take one message. Raises RemoteProtocolError if it is not this peer's turn to send it."""
        ...

    def lost(self) -> None:
        """The connection is closed; called once."""
        ...


class Connection(asyncio.BufferedProtocol):
    """One accepted socket."""

    def __init__(self, server: Server) -> None:
        self.address = "?"
        self.peer: Peer | None = None
        self.is_closed = False
        self._server = server
        self._buffer = server.receive_buffer
        self._frames = FrameReader(max_frame_bytes=MAX_HELLO_BYTES)
        self._transport: asyncio.Transport
        self._tls: TlsStream | None = server.new_tls()
        self._is_paused = False
        self._slowed: asyncio.TimerHandle | None = None
        self._allowance = server.frame_allowance()

    # --- called by the loop ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        name = transport.get_extra_info("peername")
        self.address = str(name[0]).removeprefix("::ffff:") if name else "?"
        _watch_host(transport.get_extra_info("socket"))
        self._server.greet(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        peer, pending, num_frames = self.peer, self._frames.num_pending_bytes, 0
        try:
            data = self._buffer[:nbytes] if self._tls is None else self._decrypt(self._tls, nbytes)
            for payload in self._frames.feed(data):
                if self.is_closed or peer is None:
                    break
                num_frames += 1
                peer.receive(decode_to_daemon(payload))
        except TlsFailed as error:
            self.reject("tls_failed", str(error))
        except FrameTooLarge as error:
            self.reject("frame_too_large", str(error))
        except RemoteProtocolError as error:
            self.reject("bad_frame", str(error))
        except NotAdmitted as error:
            self.reject(error.reason, error.detail)
        if pending or self._frames.num_pending_bytes:
            self._server.half_frames.changed(self, pending, self._frames.num_pending_bytes, is_another=num_frames > 0)
        if num_frames:
            self._slow_down(self._allowance.take(num_frames, now_s=self._server.now_s()))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._frames.num_pending_bytes:
            self._server.rejections.count(self.address, "half_frame")
            self._server.half_frames.changed(self, self._frames.num_pending_bytes, 0, is_another=False)
        self.is_closed = True
        if self._slowed is not None:
            self._slowed.cancel()
        self._server.forget(self)
        if self.peer is not None:
            self.peer.lost()

    def pause_writing(self) -> None:
        """The loop says that the peer does not read what we answer."""
        self.reject("does_not_read", "too many answers are unread")

    # --- called by the daemon -------------------------------------------------------------------------------------

    def send(self, message: FromDaemon) -> None:
        if self.is_closed:
            return
        data = encode(message)
        if self._tls is not None:
            self._tls.send(data)
            data = self._tls.ciphertext()
        if data:
            self._transport.write(data)

    def says_that_tls_is_required(self) -> bool:
        """Tell it, and hang up, if this is a peer that waits for us to speak first, as peers without TLS do."""
        if self._tls is None or self._tls.has_begun:
            return False
        detail = "the aggregator takes encrypted telemetry only: see --tls-ca and --tls-cert"
        self._transport.write(encode(Refused(TLS_REQUIRED, detail)))
        self.close()
        return True

    def admit(self, peer: Peer) -> None:
        """The stranger has become a member of a run."""
        self.peer = peer
        self._frames.max_frame_bytes = MAX_FRAME_BYTES

    def pause(self) -> None:
        """Read no more until `resume`; the kernel's buffers then hold the peer back."""
        self._is_paused = True
        self._read_or_wait()

    def resume(self) -> None:
        self._is_paused = False
        self._read_or_wait()

    def _decrypt(self, tls: TlsStream, nbytes: int) -> bytes:
        data = tls.receive(self._buffer[:nbytes])
        answer = tls.ciphertext()
        if answer:
            self._transport.write(answer)
        return data

    def _slow_down(self, wait_s: float) -> None:
        """It has sent more frames than it may; read on once that is made up for."""
        if wait_s and self._slowed is None and not self.is_closed:
            self._server.rejections.count(self.address, "slowed_down", "it sends too many frames")
            self._slowed = asyncio.get_running_loop().call_later(wait_s, self._speed_up)
            self._read_or_wait()

    def _speed_up(self) -> None:
        self._slowed = None
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        is_waiting = self._is_paused or self._slowed is not None
        if self.is_closed or is_waiting != self._transport.is_reading():
            return
        if is_waiting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def reject(self, reason: str, detail: str) -> None:
        """The peer broke the rules: count it and cut it off."""
        self._server.rejections.count(self.address, reason, detail)
        self.abort()

    def close(self) -> None:
        """Send what was written, then close; nothing more is read."""
        self.is_closed = True
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.is_closed = True
        self._transport.abort()


def _watch_host(connected: socket.socket | None) -> None:
    if connected is None:
        return
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in _KEEPALIVE:
            connected.setsockopt(socket.IPPROTO_TCP, option, seconds)
