"""Starts and ends telemetry in this process. An error of ours stops here, in `steps`, and in each hook.

Whatever fails here or below is counted, said once on standard error, and never reaches the script.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from traceml_client import crash, steps
from traceml_client.courier import Courier
from traceml_client.descriptors import map_shared
from traceml_client.dialogue import RankStory
from traceml_client.faults import FAULTS, say
from traceml_client.handover import Handover, take
from traceml_client.identity import identify
from traceml_client.protocol import environ, ring
from traceml_client.protocol.environ import RankEnvironment
from traceml_client.protocol.handover import HandoverRequest
from traceml_client.protocol.process_identity import start_ticks
from traceml_client.recorder import Recorder
from traceml_client.samplers import open_samplers
from traceml_client.sender import Sender

if TYPE_CHECKING:
    from traceml_client.protocol.tls import TlsStream

_LAUNCHED_BUDGET_S = 1.0
"""For the last records. A launcher holds the ring and hands in what is left, so this is only for tidiness."""
_LAUNCHED_ALONE_BUDGET_S = 0.2
"""The same where the daemon is not there just now."""
_DIRECT_BUDGET_S = 2.0
"""A direct launch has only this time."""
_DIRECT_STRANGER_BUDGET_S = 0.5
"""A direct launch that never met its daemon: a last attempt."""
_MAX_SENDER_LIVES = 10
_DIRECT_NOTE = "started without `traceml run`: what a killed rank has not sent yet is lost (salvage: unavailable)"

_client: Client | None = None


@contextlib.contextmanager
def _guard(kind: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the boundary: nothing of ours reaches the script
        FAULTS.report(kind, error)


@contextlib.contextmanager
def _guard_at_end(kind: str) -> Iterator[None]:
    """The script is over, and a Ctrl-C now means that we shall not keep anybody waiting."""
    with contextlib.suppress(KeyboardInterrupt), _guard(kind):
        yield


class Client:
    """One rank's telemetry, running. No public method raises."""

    def __init__(self, environment: RankEnvironment, handover: Handover | None) -> None:
        grant = handover.grant if handover else None
        self._handover = handover
        hello = identify(environment, grant)
        self.recorder = _open_recorder(environment, handover)
        self.recorder.set_identity(hello.pid, hello.start_ticks, hello.wall_minus_monotonic_ns)
        self._story = RankStory(hello=hello, token=grant.token if grant else environment.token)
        self._errors = crash.ErrorRecorder(
            self.recorder,
            wall_minus_monotonic_ns=hello.wall_minus_monotonic_ns,
            rank_dir=grant.rank_dir if grant else None,
            error_file=environment.error_file,
        )
        self._courier = Courier(
            recorder=self.recorder,
            story=self._story,
            address=_daemon_address(environment, handover),
            new_tls=_encryption(environment, handover),
            report_fault=FAULTS.report,
            report_unreachable=self._report_unreachable,
        )
        self._samplers, self._seldom_samplers = open_samplers(is_node_sampled=hello.local_rank == 0)
        self._sender = Sender(recorder=self.recorder, courier=self._courier, handover=handover, sample=self._sample)
        self._is_unreachable_said = handover is not None  # its launcher says what is the matter with the daemon
        self._is_finished = False

    @property
    def is_direct(self) -> bool:
        """Started by `init` and not by a launcher's worker."""
        return self._handover is None

    def start(self) -> None:
        """Begin to record and send. Raises what the system refuses; the caller guards."""
        atexit.register(self.finish)  # before any handler of the script, so that it runs after all of them
        os.register_at_fork(after_in_child=self._leave_child_alone)
        crash.chain_thread_hook(self._record_thread_error)
        if self.is_direct:
            crash.chain_main_hook(self.on_error)
        with _guard("faulthandler"):
            crash.enable_faulthandler()
        with _guard("hooks on torch"):
            _install_torch_hooks(self.recorder)
        with _guard("sender"):
            self._courier.begin(now_ns=time.monotonic_ns())
            self._sender.start(self._keep_alive)

    def on_error(self, error: BaseException) -> None:
        """An uncaught exception, before anything is printed."""
        if self.recorder.is_enabled:
            self._keep_error(self._errors.record_main, error)

    def on_exit(self, code: int, error: SystemExit | None = None) -> None:
        """The script ended with this exit code; behind `sys.exit(1)` is what it caught before, or the exit itself."""
        if not self.recorder.is_enabled:
            return
        self.recorder.set_exit_code(code)
        self._story.exit_code = code
        cause = error and (error.__cause__ or (None if error.__suppress_context__ else error.__context__))
        is_pythons = type(cause).__module__ == "runpy"  # no such module, no `__main__`: told in the exit's own words
        if code and error:
            self._keep_error(self._errors.record_logged, error if cause is None or is_pythons else cause)

    def finish(self) -> None:
        """The orderly end: the marker, and what is left to send, within a short budget. Idempotent."""
        if self._is_finished or not self.recorder.is_enabled:
            return
        self._is_finished = True
        with _guard_at_end("end"):
            self._note_displayed_error()
            self._errors.forget_handled()
            steps.finish(has_error=bool(self._story.exit_code) or self._errors.has("main"))
            self.recorder.set_marker(1)
            self._story.notes = (*self.recorder.reader.notes(), *FAULTS.sentences())
            self._story.ended_ns = time.monotonic_ns() + self._story.hello.wall_minus_monotonic_ns
            self._story.is_ending = True
            self._sender.finish(budget_s=self._budget_s())
        self.recorder.is_enabled = False

    def _note_displayed_error(self) -> None:
        """Under a direct launch the exit code is not ours to see; an uncaught exception makes it 1."""
        if self.is_direct:
            if error := crash.last_uncaught():
                self.on_error(error)
            if self._errors.has("main"):
                self._story.exit_code = 1

    def _keep_error(self, record: Callable[[BaseException], None], error: BaseException) -> None:
        known = self._errors.errors
        with _guard_at_end("error record"):
            try:
                record(error)
            except Exception:  # a signal handler of the script may have raised in us: once more, and then it counts
                if self._errors.errors != known:
                    raise
                record(error)
        self._story.errors = self._errors.errors
        self._sender.wake()

    def _record_thread_error(self, error: BaseException) -> None:
        if self.recorder.is_enabled:
            self._keep_error(self._errors.record_thread, error)

    def _leave_child_alone(self) -> None:
        """In a forked child: it is not the rank, whatever it runs."""
        if self.recorder.is_enabled or self._is_finished:
            self.recorder.is_enabled = False
            FAULTS.is_silent = True
            with _guard("fork"):
                self._sender.abandon()
                for sampler in (*self._samplers.values(), *self._seldom_samplers.values()):
                    sampler.close()

    def _budget_s(self) -> float:
        if self.is_direct:
            return _DIRECT_BUDGET_S if self._courier.was_welcome else _DIRECT_STRANGER_BUDGET_S
        return _LAUNCHED_BUDGET_S if self._courier.is_welcome else _LAUNCHED_ALONE_BUDGET_S

    def _keep_alive(self, run: Callable[[], None]) -> None:
        for _ in range(_MAX_SENDER_LIVES):
            with _guard("sender"):
                run()
                return

    def _sample(self, now_ns: int, is_whole: bool) -> None:
        with _guard("error record"):
            self._errors.note_handled()
        for kind, sampler in (self._samplers | self._seldom_samplers if is_whole else self._samplers).items():
            with _guard(f"{kind} samples"):
                for sample in sampler.sample():
                    self.recorder.record_sample(sample.kind, now_ns, sample.values)

    def _report_unreachable(self, error: OSError) -> None:
        if not self._is_unreachable_said:
            self._is_unreachable_said = True
            reason = error.strerror or str(error)
            say(f"no aggregator at {self._courier.place}: {reason}; training goes on, and it is tried again")


def take_from_launcher() -> Handover | None:
    """This rank's pipes and ring from its node's launcher; null, and one line says why, where that fails."""
    with _guard("no telemetry, the launcher's hand-over failed"):
        environment = RankEnvironment.parse(environ.snapshot())
        if environment.handover_path is None:
            say(f"{environ.HANDOVER} is not set: the script runs without telemetry")
            return None
        request = HandoverRequest(
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
            rank=environment.rank,
            local_rank=environment.local_rank,
            world_size=environment.world_size,
            local_world_size=environment.local_world_size,
            torch_restart_count=environment.torch_restart_count,
        )
        return take(environment.handover_path, request)
    return None


def start_in_worker(handover: Handover) -> Client | None:
    """Measure this process as the rank that its launcher knows; null, and one line says why, where that fails."""
    with _guard("no telemetry"):
        return _start(RankEnvironment.parse(environ.snapshot()), handover)
    return None


def init() -> None:
    """Measure this process from here on under plain `python` or `torchrun`, for an aggregator of `traceml serve`.

    Under `traceml run` the worker has started everything already, and in a rank's child processes nothing is to be
    started: there this does nothing. Never raises. A second call does nothing.
    """
    with _guard("no telemetry"):
        environment = RankEnvironment.parse(environ.snapshot())
        if _client is None and environment.handover_path is None and environment.rank_process is None:
            environ.forget_token()
            environ.mark_rank_process(f"{os.getpid()}:{start_ticks(os.getpid())}")
            _start(environment, None)


def stop() -> None:
    """End what `init` began: send what is left, at most 2 s, then record nothing more. Never raises. Idempotent.

    Called at exit anyway; under `traceml run` it does nothing, the worker ends with the script.
    """
    if _client and _client.is_direct:
        _client.finish()


def _start(environment: RankEnvironment, handover: Handover | None) -> Client:
    global _client
    client = Client(environment, handover)
    _client = client
    client.start()
    return client


def _open_recorder(environment: RankEnvironment, handover: Handover | None) -> Recorder:
    if handover:
        size = os.fstat(handover.ring.fd).st_size
        max_steps = handover.grant.trace_max_steps
        mapping = map_shared(handover.ring.fd, size)
        handover.ring.close()
        return Recorder(memoryview(mapping), max_steps=max_steps if max_steps >= 0 else None)
    memory = memoryview(map_shared(-1, ring.ring_bytes()))
    ring.initialize(memory)
    recorder = Recorder(memory, max_steps=environment.trace_max_steps)
    recorder.add_note(_DIRECT_NOTE)
    return recorder


def _daemon_address(environment: RankEnvironment, handover: Handover | None) -> tuple[str, int] | None:
    if handover is None:
        return environment.aggregator_host, environment.aggregator_port
    grant = handover.grant
    return (grant.daemon_host, grant.daemon_port) if grant.daemon_port else None


def _encryption(environment: RankEnvironment, handover: Handover | None) -> Callable[[], TlsStream | None]:
    """What makes a new connection's TLS. Raises ConfigError: the trusted certificates cannot be read."""
    file = handover.grant.tls_trust if handover else environment.tls_ca or environment.tls_cert
    if not file:
        return lambda: None
    from traceml_client.protocol.tls import TlsStream, TlsTrust, client_context

    name = handover.grant.tls_name if handover else environment.aggregator_host if environment.tls_ca else ""
    return functools.partial(TlsStream, client_context(TlsTrust(file, name)), is_server=False, name=name)


def _install_torch_hooks(recorder: Recorder) -> None:
    from traceml_client.torch_hooks import install_when_imported

    install_when_imported(recorder, FAULTS.report)
