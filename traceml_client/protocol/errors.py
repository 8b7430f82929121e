"""Exceptions of the three packages, caught by name. Ours and the peer's are told apart by type."""

from __future__ import annotations

from pathlib import Path


class TracemlError(Exception):
    """Every error that we raise on purpose; its text is one line for the user."""


class ConfigError(TracemlError):
    """An option, variable or file does not say what it must; the text names it."""


class StoreError(TracemlError):
    """The telemetry database cannot be opened, read or written."""


class BrokenInstall(TracemlError):
    """A file that comes with the package is not there, or is damaged."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} {what}: this installation of traceml is not complete, install it again")


class ProtocolError(TracemlError):
    """Somebody broke the wire rules."""


class LocalProtocolError(ProtocolError):
    """We broke them: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The peer broke them: random bytes, a bad shape, a message out of turn."""


class FrameTooLarge(RemoteProtocolError):
    """A frame announces more bytes than we are willing to buffer."""


class TlsFailed(RemoteProtocolError):
    """No TLS with this peer; the text says why, in words for a user."""


class VersionMismatch(RemoteProtocolError):
    """The peer speaks another major version; the text names both."""


class Refused(TracemlError):
    """The daemon did not let us in; `reason` is one of the codes in `messages`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"the aggregator refused us: {reason}: {detail}")
        self.reason = reason
        self.detail = detail
