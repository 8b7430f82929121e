"""Keeps a rank in touch with its daemon: connects, converses, and after a loss connects again with a back-off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from traceml_client.backoff import Backoff
from traceml_client.dialogue import Dialogue, RankStory, State
from traceml_client.link import Link, is_numeric
from traceml_client.outbox import Outbox
from traceml_client.protocol import messages
from traceml_client.protocol.clock_offset import ClockOffset
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.recorder import Recorder

if TYPE_CHECKING:
    from traceml_client.protocol.tls import TlsStream

_MAX_FRAMES_PER_TURN = 32
"""8,000 records; then whatever else the thread has to do gets its turn."""
_RETRY_WHEN_REFUSED = frozenset({messages.SLOT_TAKEN, messages.TOO_MANY, messages.UNKNOWN_NODE})
"""The daemon may not have noticed yet that our last connection is gone, or that our launcher is back after the daemon
was started again; every other refusal is for good."""


class Courier:
    """All methods belong to the sender's thread; the properties may be read by any."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        story: RankStory,
        address: tuple[str, int] | None,
        report_fault: Callable[[str, BaseException], None],
        report_unreachable: Callable[[OSError], None],
        new_tls: Callable[[], TlsStream | None] = lambda: None,
    ) -> None:
        """Neither report may raise.

        Args:
            report_fault: a peer that breaks the rules, or a refusal for good.
            report_unreachable: nobody answers, or the connection was lost; tried again.
            new_tls: the encryption of a new connection.
        """
        self._story = story
        self._address = address
        self._report_fault = report_fault
        self._report_unreachable = report_unreachable
        self._new_tls = new_tls
        self._outbox = Outbox(recorder)
        self._clock = ClockOffset()
        self._backoff = Backoff()
        self._link: Link | None = None
        self._dialogue: Dialogue | None = None
        self._connect_at_ns = 0
        self._num_attempts = 0
        self.is_marker_stored = False
        self.was_welcome = False
        """Whether the daemon has ever let us in."""

    @property
    def is_welcome(self) -> bool:
        """Whether the daemon has let us in, as far as we know."""
        return self._dialogue is not None and self._dialogue.state is State.OPEN

    @property
    def has_address(self) -> bool:
        """False if nothing will ever be sent: there is no daemon, or it refused us for good."""
        return self._address is not None

    @property
    def place(self) -> str:
        """The daemon's address, for people."""
        return "{}:{}".format(*self._address) if self._address else "nowhere"

    @property
    def interest(self) -> tuple[int, int] | None:
        """(descriptor, poll events) to wait for; null without a connection."""
        return (self._link.fd, self._link.wanted_events) if self._link and self._link.is_intact else None

    @property
    def next_attempt_ns(self) -> int | None:
        """When `turn` will have to connect; null where it does not."""
        return self._connect_at_ns if self._link is None and self._address else None

    def begin(self, *, now_ns: int) -> None:
        """Begin to connect before the script runs, if that needs no name to be looked up.

        A new socket has a low number for an instant; later that could be the one which the script is about to use.
        """
        if self._address and is_numeric(self._address[0]):
            self.turn(now_ns=now_ns)

    def hurry(self) -> None:
        """The rank ends: do not wait for the back-off's time."""
        self._connect_at_ns = 0
        self._backoff.reset()

    def tick(self, *, now_ns: int) -> None:
        """Once a second."""
        if self._link and self._dialogue:
            try:
                # First what has come: this process may have been stopped for a minute, and not the daemon.
                self._dialogue.receive(self._link.receive(), now_ns=now_ns)
                self._dialogue.tick(now_ns=now_ns)
            except (OSError, RemoteProtocolError) as error:
                self._lose(error, now_ns)

    def turn(self, *, now_ns: int) -> bool:
        """Do what can be done now without waiting. True if there is more of it."""
        try:
            self._connect_if_due(now_ns)
            return self._converse(now_ns)
        except (OSError, RemoteProtocolError) as error:
            self._lose(error, now_ns)
            return False

    def close(self) -> None:
        if self._link:
            self._link.close()
        self._link = self._dialogue = None

    def _connect_if_due(self, now_ns: int) -> None:
        if self._link and not self._link.is_intact:
            self.close()  # the script closed our descriptor: take another
        if self._link is None and self._address and now_ns >= self._connect_at_ns:
            self._num_attempts += 1
            self._link = Link(*self._address, choice=self._num_attempts - 1, tls=self._new_tls())
            self._dialogue = Dialogue(self._story, self._outbox, self._clock, now_ns=now_ns)

    def _converse(self, now_ns: int) -> bool:
        link, dialogue = self._link, self._dialogue
        if link is None or dialogue is None:
            return False
        dialogue.receive(link.receive(), now_ns=now_ns)
        if dialogue.refusal:
            self._accept_refusal(dialogue, now_ns)
            return False
        if dialogue.state is State.OPEN:
            self.was_welcome = True
            self._backoff.reset()
        self.is_marker_stored = dialogue.is_marker_stored
        link.send(b"")
        for _ in range(_MAX_FRAMES_PER_TURN):
            if not link.is_writable:
                return False
            frame = dialogue.next_frame(now_ns=now_ns)
            if not frame:
                return False
            link.send(frame)
        return True

    def _accept_refusal(self, dialogue: Dialogue, now_ns: int) -> None:
        refusal = dialogue.refusal
        assert refusal is not None
        if refusal.reason in _RETRY_WHEN_REFUSED:
            self._retry_later(now_ns)
            return
        self.close()
        self._address = None
        self._report_fault("telemetry", refusal)

    def _lose(self, error: OSError | RemoteProtocolError, now_ns: int) -> None:
        self._retry_later(now_ns)
        if isinstance(error, OSError):
            self._report_unreachable(error)
        else:
            self._report_fault("telemetry", error)

    def _retry_later(self, now_ns: int) -> None:
        self.close()
        self._connect_at_ns = now_ns + int(self._backoff.next_wait_s() * 1e9)
