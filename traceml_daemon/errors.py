"""Exceptions of the daemon, beside those of the protocol."""

from __future__ import annotations

from traceml_client.protocol.errors import TracemlError
from traceml_daemon.report.facts import Reported


class CannotStart(TracemlError):
    """The daemon cannot serve: the port, the logs folder or the database is not to be had."""

    def __init__(self, text: str, *, is_port_taken: bool = False) -> None:
        super().__init__(text)
        self.is_port_taken = is_port_taken


class NotAdmitted(TracemlError):
    """A peer is not let in; `reason` is one of the codes in `protocol.messages`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class ReportError(TracemlError):
    """The reports could not be made; the text is what stands in finalization_error.json."""

    def __init__(self, text: str, reported: Reported | None = None) -> None:
        super().__init__(text)
        self.reported = reported or Reported()
        """What is known of a failure all the same: it needs no database."""
