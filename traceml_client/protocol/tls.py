"""TLS without I/O, for both ends: ciphertext in, plaintext out. Nothing of it is imported where no TLS is asked for.

A peer is known by its run token, so only the daemon shows a certificate. It is checked against `--tls-ca` and the host
name; without one the ranks are given the very certificate that they must meet.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from traceml_client.protocol.errors import ConfigError, TlsFailed

MAX_HANDSHAKE_BYTES = 64 << 10
"""What a peer may send before it has shaken hands; a hello of TLS is below 2 KB."""
_READ_BYTES = 64 << 10
_PLAINTEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE")
"""How the library says that the other side does not encrypt."""


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """Which daemon a client believes."""

    file: str
    """PEM: certificate authorities, or the daemon's own certificate."""
    name: str = ""
    """The host name that the certificate must be for; empty: it must be the one in the file."""


def server_context(cert: str, key: str) -> ssl.SSLContext:
    """What a daemon needs. Blocks.

    Raises:
        ConfigError: a file cannot be read, or the two do not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nobody resumes
    _check_readable("--tls-cert", cert)
    _check_readable("--tls-key", key)
    try:
        context.load_cert_chain(cert, key, password="")
    except OSError as error:
        raise ConfigError(f"--tls-cert {cert} and --tls-key {key}: {_why(error)}") from None
    return context


def client_context(trust: TlsTrust) -> ssl.SSLContext:
    """What a rank or launcher needs. Blocks. Raises ConfigError: the file cannot be read or holds no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = bool(trust.name)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a certificate in the file needs nobody above it
    option = "--tls-ca" if trust.name else "--tls-cert"
    _check_readable(option, trust.file)
    try:
        context.load_verify_locations(trust.file)
    except OSError as error:
        raise ConfigError(f"{option} {trust.file}: {_why(error)}") from None
    return context


def is_final(error: ssl.SSLError) -> bool:
    """Whether it will fail the next time as well; otherwise the wire was cut in the middle of it."""
    return isinstance(error, ssl.SSLCertVerificationError) or error.reason in _PLAINTEXT


def why_not(error: ssl.SSLError) -> str:
    """A failed handshake in one sentence, for a user of the client's side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the aggregator's certificate is not the expected one: {error.verify_message} (--tls-ca, --tls-cert)"
    if error.reason in _PLAINTEXT:
        return "the aggregator does not speak TLS (it was started without --tls-cert)"
    return f"no TLS with the peer: {_why(error)}"


class TlsStream:
    """One connection. Its memory is taken when the first byte comes, so that silent strangers cost nothing."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, name: str = "") -> None:
        self.is_established = False
        self._context = context
        self._is_server = is_server
        self._name = name
        self._num_handshake_bytes = 0
        self._unsent: list[bytes] = []
        """Plaintext from before the end of the handshake."""
        self._tls: ssl.SSLObject | None = None
        self._incoming: ssl.MemoryBIO
        self._outgoing: ssl.MemoryBIO
        if not is_server:
            self._shake_hands()

    @property
    def has_begun(self) -> bool:
        """Whether the peer has sent anything."""
        return self._tls is not None

    def receive(self, data: bytes | bytearray | memoryview) -> bytes:
        """The plaintext that this ciphertext completes; there may be `ciphertext` to send afterwards.

        Raises:
            TlsFailed: the connection is of no further use.
        """
        tls = self._tls or self._begin()
        self._incoming.write(data)
        try:
            if not self.is_established:
                self._num_handshake_bytes += len(data)
                if self._num_handshake_bytes > MAX_HANDSHAKE_BYTES:
                    raise TlsFailed("a handshake that does not end")
                self._shake_hands()
            return self._read_all(tls) if self.is_established else b""
        except ssl.SSLError as error:
            raise TlsFailed(why_not(error)) from None

    def send(self, plaintext: bytes) -> None:
        """Encrypt it; `ciphertext` has it once the handshake is over."""
        if self._tls is None or not self.is_established:
            self._unsent.append(plaintext)
        elif plaintext:
            self._tls.write(plaintext)

    def ciphertext(self) -> bytes:
        """What is to be sent now; each byte is returned once."""
        return b"" if self._tls is None else self._outgoing.read()

    def _begin(self) -> ssl.SSLObject:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = self._context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._is_server, server_hostname=self._name or None
        )
        return self._tls

    def _shake_hands(self) -> None:
        tls = self._tls or self._begin()
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_established = True
        for plaintext in self._unsent:
            tls.write(plaintext)
        self._unsent.clear()

    def _read_all(self, tls: ssl.SSLObject) -> bytes:
        parts: list[bytes] = []
        while True:
            try:
                part = tls.read(_READ_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                part = b""
            if not part:
                return b"".join(parts)
            parts.append(part)


def _check_readable(option: str, path: str) -> None:
    """The library says of a missing file only that something is missing."""
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read: {error.strerror}") from None


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or "it is no PEM file"
    return str(reason).replace("_", " ").lower()
