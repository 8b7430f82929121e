"""The error of a rank, written at the raise: into its ring, for torchrun's table, and as a file for people.

Formatting happens while the exception is being handled, before anything is printed, because the process may be killed
while it prints. What is written is bounded; the end of a traceback is worth more than its beginning.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

from traceml_client.collective_call import call_of
from traceml_client.protocol import ring
from traceml_client.protocol.node import ErrorKind, RankError
from traceml_client.recorder import Recorder

_STDERR = 2

_DWELL_S = 0.02
"""A main thread that handles an exception for longer does more than to look for something else."""
_MAX_MESSAGE = 2_000
_MAX_TRACEBACK = 64 * 1024
"""In the files. The ring holds less, see `fit`."""
ERROR_FILE_SCHEMA_VERSION = 1


def describe(error: BaseException, *, kind: ErrorKind, raised_ns: int, step: int, phase: str | None) -> RankError:
    """The error with its whole traceback, as Python would print it; an odd exception's text says what is odd."""
    call = call_of(error)
    parts = traceback.TracebackException.from_exception(error, compact=True)
    return RankError(
        kind=kind,
        type=_type_name(type(error)),
        message=_printable(str(parts))[:_MAX_MESSAGE],
        traceback=_keep_ends(_printable("".join(parts.format())), _MAX_TRACEBACK),
        raised_ns=raised_ns,
        step=step,
        phase=phase,
        collective=call.text if call else None,
        collective_bytes=call.num_bytes if call else None,
    )


def fit(error: RankError, max_bytes: int) -> bytes:
    """`error` as JSON of at most `max_bytes` (at least 4 KiB): a traceback too long for it loses its middle."""
    limit = len(error.traceback)
    while True:
        data = msgspec.json.encode(error)
        if len(data) <= max_bytes:
            return data
        limit = min(limit, max_bytes) * 3 // 4
        error = msgspec.structs.replace(
            error, traceback=_keep_ends(error.traceback, limit), message=error.message[: max(100, limit // 4)]
        )


def torchelastic_form(error: RankError) -> dict[str, Any]:
    """What torchrun reads from TORCHELASTIC_ERROR_FILE for its table of failures."""
    return {
        "message": {
            "message": f"{error.type.rpartition('.')[2]}: {error.message}",
            "extraInfo": {"py_callstack": error.traceback, "timestamp": str(error.raised_ns // 1_000_000_000)},
        }
    }


def write_for_torchrun(path: str, error: RankError) -> None:
    """Write torchelastic's error file unless the script's own `@record` has.

    Raises:
        OSError: as the file system says.
    """
    with contextlib.suppress(FileExistsError):
        _write_new(path, msgspec.json.encode(torchelastic_form(error)))


def write_for_people(rank_dir: str, errors: tuple[RankError, ...], torchelastic_path: str | None) -> None:
    """Write `error.json` into the rank's folder: torchelastic's form (its own content where there is one), and ours.

    Raises:
        OSError: as the file system says.
    """
    document: dict[str, Any] = {"schema_version": ERROR_FILE_SCHEMA_VERSION}
    document |= _read_object(torchelastic_path) or torchelastic_form(errors[-1])
    document["errors"] = errors
    path = os.path.join(rank_dir, "error.json")
    temporary = f"{path}.{os.getpid()}"
    _write_new(temporary, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    os.replace(temporary, path)


def _write_new(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)


def _read_object(path: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None


def _type_name(kind: type[BaseException]) -> str:
    module = getattr(kind, "__module__", "__main__")  # a type made by hand need not have one
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _printable(text: str) -> str:
    """Text that every encoder takes: a lone surrogate (a file name that is no UTF-8) becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _keep_ends(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    head, tail = max_chars // 4, max_chars - max_chars // 4
    return f"{text[:head]}\n[... {len(text) - max_chars} characters left out ...]\n{text[-tail:]}"


class ErrorRecorder:
    """Keeps the first error of the main thread and the first of any other one, in the ring and in files.

    Args:
        rank_dir: the rank's own folder; null under a direct launch.
        error_file: torchelastic's, where torchrun set one.
    """

    def __init__(
        self, recorder: Recorder, *, wall_minus_monotonic_ns: int, rank_dir: str | None, error_file: str | None
    ):
        self._recorder = recorder
        self._wall_minus_monotonic_ns = wall_minus_monotonic_ns
        self._rank_dir = rank_dir
        self._error_file = error_file
        self.errors: tuple[RankError, ...] = ()
        """As they were raised, at most one of each kind."""
        self._handled_id: int | None = None
        """Of what the main thread was handling at the last look. Not the exception: it holds frames and tensors."""

    def has(self, kind: ErrorKind) -> bool:
        return any(error.kind == kind for error in self.errors)

    def record_main(self, error: BaseException) -> None:
        """An exception that ends the process. Raises OSError if a file cannot be written; the ring has it by then."""
        if self.has("main"):
            return
        recorded = self._record(error, "main", ring.MAIN_ERROR)
        if self._error_file and isinstance(error, Exception):  # as torchelastic itself: not for an interrupt
            write_for_torchrun(self._error_file, recorded)
        self._write_for_people()

    def record_logged(self, error: BaseException) -> None:
        """What the script caught before it left with an exit code, or that SystemExit. Raises as `record_main`."""
        if not self.has("main"):
            self._record(error, "main", ring.MAIN_ERROR)
            self._write_for_people()

    def record_thread(self, error: BaseException) -> None:
        """An exception that ended a thread. torchrun is not told: the process goes on. Raises as `record_main`."""
        if not self.has("thread"):
            self._record(error, "thread", ring.THREAD_ERROR)
            self._write_for_people()

    def note_handled(self) -> None:
        """Keep what the main thread is handling, until it is done with it: it may be ended before it says so.

        To be called at times from another thread. What is raised in the end takes its place.
        """
        if self.has("main"):
            return
        error = _handled_by_main()
        if error is None:
            self.forget_handled()
        elif id(error) != self._handled_id:
            time.sleep(_DWELL_S)
            if _handled_by_main() is not error:
                return
            self._handled_id = id(error)
            self._write(self._describe(error, "handled"), ring.MAIN_ERROR)
        for raised in self.errors:  # meanwhile, in the main thread
            if raised.kind == "main":
                self._write(raised, ring.MAIN_ERROR)

    def forget_handled(self) -> None:
        """It went on, or came to its orderly end."""
        if self._handled_id is not None and not self.has("main"):
            self._recorder.write_text(ring.MAIN_ERROR, b"")
        self._handled_id = None

    def _record(self, error: BaseException, kind: ErrorKind, area: int) -> RankError:
        described = self._describe(error, kind)
        self.errors = (*self.errors, described)
        self._write(described, area)
        return described

    def _describe(self, error: BaseException, kind: ErrorKind) -> RankError:
        step, phase, _ = self._recorder.reader.progress()
        raised_ns = time.monotonic_ns() + self._wall_minus_monotonic_ns
        return describe(error, kind=kind, raised_ns=raised_ns, step=step, phase=phase)

    def _write(self, error: RankError, area: int) -> None:
        start, end = ring.TEXT_AREA[area]
        self._recorder.write_text(area, fit(error, end - start))

    def _write_for_people(self) -> None:
        if self._rank_dir:
            write_for_people(self._rank_dir, self.errors, self._error_file if self.has("main") else None)


def _handled_by_main() -> BaseException | None:
    active: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    error = active[1] if isinstance(active, tuple) else active  # until Python 3.11 a tuple
    return error if isinstance(error, BaseException) else None


def chain_thread_hook(record: Callable[[BaseException], None]) -> None:
    """Have `record`, which must not raise, called for every exception that ends a thread; then today's hook."""
    previous = threading.excepthook

    def record_and_pass_on(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            record(args.exc_value)
        previous(args)

    threading.excepthook = record_and_pass_on


def chain_main_hook(record: Callable[[BaseException], None]) -> None:
    """The same for the main thread of a process that we did not start ourselves."""
    previous = sys.excepthook

    def record_and_pass_on(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        record(error)
        previous(kind, error, traceback)

    sys.excepthook = record_and_pass_on


def last_uncaught() -> BaseException | None:
    """What the interpreter has displayed as uncaught; seen at exit also where the script replaced our hook."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def enable_faulthandler() -> None:
    """Have a fatal signal print all stacks on the rank's standard error; a script that enables its own replaces this.

    Raises:
        RuntimeError, OSError, ValueError: descriptor 2 is closed.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(file=_STDERR)
