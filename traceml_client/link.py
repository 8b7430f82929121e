"""A TCP connection that never blocks, under a descriptor number that is out of the script's way."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from typing import TYPE_CHECKING

from traceml_client.descriptors import HeldDescriptor

if TYPE_CHECKING:
    from traceml_client.protocol.tls import TlsStream

_RECEIVE_BYTES = 64 * 1024


def is_numeric(host: str) -> bool:
    """Whether `host` is an address and not a name."""
    try:
        socket.getaddrinfo(host.encode("ascii", "replace"), None, flags=socket.AI_NUMERICHOST)
    except OSError:
        return False
    return True


class Link:
    """One attempt to reach the daemon, from its connect to its end. Every failure is an OSError."""

    def __init__(self, host: str, port: int, *, choice: int = 0, tls: TlsStream | None = None) -> None:
        """Begin to connect. A host name is looked up here, which may take as long as the resolver likes.

        Args:
            choice: which of a name's several addresses to try, counted round.
            tls: null: what is sent is sent as it is.

        Raises:
            OSError: the name is unknown, or nobody listens there.
        """
        # As bytes: given a str, the library would import its IDNA tables now, from the script's own path.
        found = socket.getaddrinfo(host.encode("ascii", "replace"), port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[choice % len(found)]
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = connecting.connect_ex(address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except BaseException:
            connecting.close()
            raise
        self._held = HeldDescriptor(connecting.detach())
        self._socket = socket.socket(family, kind, protocol, fileno=self._held.fd)
        self._is_connected = code == 0
        self._tls = tls
        self._unsent = tls.ciphertext() if tls else b""

    @property
    def fd(self) -> int:
        return self._held.fd

    @property
    def is_intact(self) -> bool:
        """False once the script has closed our descriptor."""
        return self._held.is_intact()

    @property
    def is_writable(self) -> bool:
        """Whether the last frame is out and another one may follow."""
        return self._is_connected and not self._unsent

    @property
    def wanted_events(self) -> int:
        return select.POLLIN if self.is_writable else select.POLLIN | select.POLLOUT

    def receive(self) -> bytes:
        """What has arrived, empty if nothing.

        Raises:
            OSError: the connection failed or is over.
            TlsFailed: the peer is not the one that was expected, or speaks no TLS.
        """
        self._finish_connecting()
        if not self._is_connected:
            return b""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the aggregator")
        if self._tls is None:
            return data
        plaintext = self._tls.receive(data)
        self._unsent += self._tls.ciphertext()
        return plaintext

    def send(self, frame: bytes) -> None:
        """Send `frame` after what is left of the last one; what does not go out now is kept. Raises OSError."""
        if self._tls is not None:
            self._tls.send(frame)
            frame = self._tls.ciphertext()
        self._unsent += frame
        if not self._is_connected or not self._unsent:
            return
        try:
            # No SIGPIPE, whatever the script has made of that signal.
            num_sent = self._socket.send(self._unsent, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        self._unsent = self._unsent[num_sent:]

    def close(self) -> None:
        """Idempotent. A number that is not ours any more is left alone."""
        if self._held.is_intact():
            with contextlib.suppress(OSError):
                self._socket.close()
        else:
            self._socket.detach()
        self._held.fd = -1

    def _finish_connecting(self) -> None:
        if self._is_connected:
            return
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        try:
            self._socket.getpeername()
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
            return
        self._is_connected = True
