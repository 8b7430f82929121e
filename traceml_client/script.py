"""Runs a training script as if Python had been started with it: same `__main__`, arguments, path, errors and exit code.

Nothing here knows of telemetry: what happens at the end is told to an observer, which must not raise.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader, SourcelessFileLoader
from types import ModuleType, TracebackType
from typing import NoReturn, Protocol

_STARTUP_MODULES = {
    "__main__", "abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "runpy", "site", "stat",
    "zipimport",
}  # fmt: skip
"""Imported by Python itself before any script, and so never the script's own file of that name."""
_OURS = "traceml_client"


_run_as_main: Callable[..., object] = runpy._run_module_as_main  # type: ignore[attr-defined]
"""What the interpreter itself calls for `-m`: its frames belong into a traceback there."""


class Observer(Protocol):
    """Learns how the script ends, before Python acts on it."""

    def on_error(self, error: BaseException) -> None:
        """An exception left the script; nothing has been printed yet."""

    def on_exit(self, code: int, error: SystemExit | None = None) -> None:
        """The script has ended with this code; threads and atexit handlers are still to come."""


def run_script(path: str, arguments: list[str], observer: Observer) -> None:
    """Run a source file, compiled file, directory or zip archive, as `python PATH ARGUMENTS`.

    Raises:
        SystemExit, KeyboardInterrupt: as the script's end demands; they have to reach the interpreter.
    """
    sys.argv = [path, *arguments]
    sys.orig_argv = [*_interpreter_arguments(), *sys.argv]
    main = _fresh_main()
    full_path = os.path.join(os.getcwd(), path)
    if _is_import_path(full_path):
        _replace_first_path(full_path)
        _observe(partial(_run_as_main, "__main__", False), observer)
    else:
        if not sys.flags.safe_path:
            _replace_first_path(os.path.dirname(os.path.realpath(path)))
        _observe(partial(_run_file, full_path, main), observer)


def run_module(name: str, arguments: list[str], observer: Observer) -> None:
    """Run a module or a package's `__main__`, as `python -m NAME ARGUMENTS`. Raises as `run_script`."""
    sys.argv = ["-m", *arguments]
    sys.orig_argv = [*_interpreter_arguments(), "-m", name, *arguments]
    _fresh_main()
    if not sys.flags.safe_path:
        _replace_first_path(os.getcwd())
    _observe(partial(_run_as_main, name), observer)


def _interpreter_arguments() -> list[str]:
    """Python and its own options, without `-m traceml_client.worker` and what follows."""
    end = sys.orig_argv.index("-m") if "-m" in sys.orig_argv else 1
    return sys.orig_argv[:end]


def _fresh_main() -> ModuleType:
    """A new `__main__` with what the interpreter puts into it."""
    old = vars(sys.modules["__main__"])
    main = ModuleType("__main__")
    if "__annotations__" in old:  # until Python 3.13
        main.__annotations__ = {}
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def _is_import_path(path: str) -> bool:
    """Whether Python would look for a `__main__` module inside: a directory or an archive."""
    for hook in sys.path_hooks:
        try:
            sys.path_importer_cache[path] = hook(path)
        except ImportError:
            continue
        return True
    return False


def _replace_first_path(entry: str) -> None:
    """Put the script's place where Python puts it; the worker has taken its own entry away."""
    sys.path.insert(0, entry)
    _forget_shadowed(entry)


def _forget_shadowed(directory: str) -> None:
    """Let the script import its own `queue.py` although we have imported the library's."""
    try:
        files = set(os.listdir(directory))
    except OSError:
        return
    loaded = {name for name in sys.modules if "." not in name} - _STARTUP_MODULES - {_OURS, *sys.builtin_module_names}
    for name in loaded:
        candidates = {f"{name}{suffix}" for suffix in (".py", *EXTENSION_SUFFIXES)}
        is_package = name in files and os.path.exists(os.path.join(directory, name, "__init__.py"))
        if (is_package or candidates & files) and not _is_inside(sys.modules[name], directory):
            for loaded_name in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
                del sys.modules[loaded_name]


def _is_inside(module: ModuleType, directory: str) -> bool:
    return (getattr(module, "__file__", None) or "").startswith(os.path.join(directory, ""))


def _run_file(path: str, main: ModuleType) -> None:
    is_compiled = path.endswith(".pyc")
    loader = (SourcelessFileLoader if is_compiled else SourceFileLoader)("__main__", path)
    main.__file__, main.__cached__, main.__loader__ = path, None, loader  # type: ignore[attr-defined]
    code = loader.get_code("__main__") if is_compiled else compile(_read(path), path, "exec", dont_inherit=True)
    exec(code, vars(main))  # type: ignore[arg-type]


def _read(path: str) -> bytes:
    """The script's source. Raises SystemExit with Python's own words and code where it cannot be read."""
    try:
        with io.open_code(path) as file:
            return file.read()
    except OSError as error:
        reason = f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        print(f"{sys.orig_argv[0]}: {reason}", file=sys.stderr)
    raise SystemExit(2)


def _observe(action: Callable[[], object], observer: Observer) -> None:
    try:
        action()
    except SystemExit as end:
        observer.on_exit(_exit_code(end), end)
        raise
    except BaseException as caught:  # noqa: BLE001 - the script's, displayed below
        error: BaseException = caught
        error.__traceback__ = _without_our_frames(caught.__traceback__)
    else:
        observer.on_exit(0)
        return
    # Outside the handler, as in the interpreter: the script's hook sees no exception in progress.
    try:
        _fail(error, observer)
    finally:
        del error  # it holds frames that hold this one


def _fail(error: BaseException, observer: Observer) -> NoReturn:
    try:
        observer.on_error(error)
        try:
            _display(error)
        except SystemExit as end:
            observer.on_exit(_exit_code(end), end)
            raise
        if type(error) is KeyboardInterrupt:
            _end_by_interrupt(error)
        observer.on_exit(1)
        raise SystemExit(1)
    finally:
        del error


def _display(error: BaseException) -> None:
    """What the interpreter does with an exception that nobody caught.

    Raises:
        SystemExit: the script's own hook ended the process.
    """
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        _write_error("sys.excepthook is missing\n")
        hook = sys.__excepthook__
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as second:  # noqa: BLE001 - the script's, displayed as the interpreter does
        second.__traceback__ = _without_our_frames(second.__traceback__)
        _write_error("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        _write_error("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def _end_by_interrupt(error: KeyboardInterrupt) -> NoReturn:
    """Let the interpreter see it: it ends the process by SIGINT. Its second display of the error is silenced."""
    hook, traceback = sys.excepthook, error.__traceback__

    def show_nothing(*_: object) -> None:
        error.__traceback__ = traceback
        sys.excepthook = hook

    sys.excepthook = show_nothing
    raise error


def _exit_code(end: SystemExit) -> int:
    """The process's exit code as the kernel will report it."""
    code = end.code
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1  # printed by the interpreter
    return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF


def _write_error(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename == _observe.__code__.co_filename:
        traceback = traceback.tb_next
    return traceback
