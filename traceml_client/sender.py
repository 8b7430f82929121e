"""The one thread of ours in a rank: moves records from the ring to the daemon, and watches the launcher.

It wakes once a second, when the daemon or the launcher says something, and when it is told that an error was recorded
or that the rank ends. It never makes training wait: sockets do not block, work per turn is bounded, and what the daemon
does not take stays in the ring, where the next record overwrites the oldest one.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

from traceml_client.courier import Courier
from traceml_client.descriptors import HeldDescriptor
from traceml_client.handover import Handover
from traceml_client.recorder import Recorder

_TICK_NS = 1_000_000_000
_EARLY_TICK_NS = 250_000_000
_EARLY_NS = 60_000_000_000
"""At first a rank is sampled more often: a leak of a minute's run would otherwise be a handful of samples."""
_CLOSING_S = 0.5
"""For the thread to end after its own deadline."""
_DEAF_MS = 50
"""How often to look around once the script has closed the descriptor that would wake us."""
_MARKER_STORED = 2
_FATAL = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP}
"""Raised by the thread itself; faulthandler must see them."""


class Sender:
    """The thread and what it works on.

    Args:
        handover: null under a direct launch.
        sample: takes samples, given the monotonic time: all, or only those that are wanted often; must not raise.
    """

    def __init__(
        self, *, recorder: Recorder, courier: Courier, handover: Handover | None, sample: Callable[[int, bool], None]
    ) -> None:
        self._recorder = recorder
        self._courier = courier
        self._handover = handover
        self._sample = sample
        self._tick_at_ns = 0
        self._early_tick_at_ns = self._is_early_until_ns = 0
        self._stop_at_ns: int | None = None
        self._is_hurried = False
        self._wake = HeldDescriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._is_running = False
        self._ended = _thread.allocate_lock()
        """Held while the thread runs."""

    def start(self, guard: Callable[[Callable[[], None]], None]) -> None:
        """Start the thread: it calls `guard(run)`, and `guard` catches what must never be seen by the script.

        Not a `threading.Thread`: a script that counts or joins its threads does not meet ours.

        Raises:
            RuntimeError: the system refuses another thread.
        """
        self._is_running = True
        self._ended.acquire()
        # The thread inherits this: the script's handlers run in its main thread, which a signal delivered to ours would
        # not interrupt.
        own = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FATAL)
        try:
            _thread.start_new_thread(self._live, (guard,))
        except RuntimeError:
            self._is_running = False
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, own)

    def wake(self) -> None:
        """Have the thread look around now. Any thread; never blocks."""
        if self._wake.is_intact():
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake.fd, 1)

    def finish(self, *, budget_s: float) -> bool:
        """Send what is left and the marker, for at most `budget_s`, and end the thread. True if all was acknowledged.

        The story must say by now that the rank is ending.
        """
        if self._is_running:
            self._stop_at_ns = time.monotonic_ns() + int(budget_s * 1e9)
            self.wake()
            if self._ended.acquire(timeout=budget_s + _CLOSING_S):
                self._ended.release()
        return self._courier.is_marker_stored

    def abandon(self) -> None:
        """In a forked child, where the thread does not exist: close what belongs to the parent."""
        self._is_running = False
        self._courier.close()
        self._wake.close()
        if self._handover:
            self._handover.close()

    def _live(self, guard: Callable[[Callable[[], None]], None]) -> None:
        try:
            guard(self._run)
        finally:
            self._is_running = False
            self._ended.release()

    def _run(self) -> None:
        """Until `finish`. After a fault it may be called again and goes on."""
        while True:
            now_ns = time.monotonic_ns()
            is_stopping = self._stop_at_ns is not None
            if now_ns >= self._tick_at_ns or (is_stopping and not self._is_hurried):
                self._tick(now_ns)
            elif self._is_early(now_ns) and now_ns >= self._early_tick_at_ns:
                self._early_tick_at_ns = now_ns + _EARLY_TICK_NS
                self._sample(now_ns, False)
            if is_stopping and not self._is_hurried:
                self._is_hurried = True
                self._courier.hurry()
            has_more = self._courier.turn(now_ns=now_ns)
            if self._is_finished(now_ns):
                break
            self._wait(0 if has_more else self._timeout_ms())
        self._courier.close()
        self._wake.close()

    def _tick(self, now_ns: int) -> None:
        self._tick_at_ns = now_ns + _TICK_NS
        self._early_tick_at_ns = now_ns + _EARLY_TICK_NS
        self._sample(now_ns, True)
        self._courier.tick(now_ns=now_ns)
        if self._handover and self._handover.is_launcher_gone:
            self._handover.copy_rest()

    def _is_early(self, now_ns: int) -> bool:
        self._is_early_until_ns = self._is_early_until_ns or now_ns + _EARLY_NS
        return now_ns < self._is_early_until_ns

    def _is_finished(self, now_ns: int) -> bool:
        if self._stop_at_ns is None:
            return False
        if self._courier.is_marker_stored:
            self._recorder.set_marker(_MARKER_STORED)
            return True
        return not self._courier.has_address or now_ns >= self._stop_at_ns

    def _timeout_ms(self) -> int:
        now_ns = time.monotonic_ns()
        tick_ns = min(self._tick_at_ns, self._early_tick_at_ns) if self._is_early(now_ns) else self._tick_at_ns
        times = (tick_ns, self._stop_at_ns, self._courier.next_attempt_ns)
        nearest_ns = min(time_ns for time_ns in times if time_ns is not None)
        wait_ms = max(0, nearest_ns - now_ns) // 1_000_000 + 1
        return wait_ms if self._wake.is_intact() else min(wait_ms, _DEAF_MS)

    def _wait(self, timeout_ms: int) -> None:
        poller = select.poll()
        for fd, events in self._interests():
            poller.register(fd, events)
        ready = {fd for fd, _ in poller.poll(timeout_ms)}
        if self._wake.fd in ready and self._wake.is_intact():
            with contextlib.suppress(OSError):
                os.eventfd_read(self._wake.fd)
        handover = self._handover
        if handover is None:
            return
        if handover.is_launcher_gone:
            handover.copy_rest()
        elif handover.launcher.fd in ready and handover.has_launcher_hung_up():
            handover.outlive_launcher()

    def _interests(self) -> list[tuple[int, int]]:
        """What to wait for. A descriptor that the script has closed is left out: nothing comes from there any more."""
        held = [self._wake]
        if self._handover:
            streams = self._handover.streams if self._handover.is_launcher_gone else []
            held += [stream.read_end for stream in streams] or [self._handover.launcher]
        interests = [(one.fd, select.POLLIN) for one in held if one.is_intact()]
        return [*interests, self._courier.interest] if self._courier.interest else interests
