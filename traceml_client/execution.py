"""Stays with a script that executes itself anew, as some do to set an allocator or a variable for the interpreter.

The process stays the rank: what Python executes is the worker with the new command, if it is this Python and would find
us again. Everything else is executed as it is.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from traceml_client.protocol import environ
from traceml_client.torch_hooks.import_watch import hide_frame

_WORKER = "traceml_client.worker"
_FLAGS = re.compile(r"-[bBdOPquvx]+|-[WX].+")
"""Options of Python that take no further word and do not change where modules are found."""
_TELLS_WHERE = ("PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR", environ.HANDOVER)


def follow_executions(report_fault: Callable[[str, BaseException], None]) -> None:
    """Wrap what all of Python's `os.exec*` come down to, for this process and none of its children.

    Args:
        report_fault: takes what failed, in words, and an error of ours; the script then executes what it wanted.
    """
    wrap = functools.partial(_following, pid=os.getpid(), started_with=environ.snapshot(), report_fault=report_fault)
    for name in ("execv", "execve"):
        setattr(os, name, wrap(getattr(os, name)))


def measured(arguments: Sequence[str]) -> list[str] | None:
    """The command line of Python with the worker in it; null where it runs neither a script nor a module."""
    index = 1
    while index < len(arguments) and (arguments[index] in ("-W", "-X") or _FLAGS.fullmatch(arguments[index])):
        index += 2 if arguments[index] in ("-W", "-X") else 1
    target = list(arguments[index:])
    is_module = target[:1] == ["-m"]
    if len(target) <= is_module or target[is_module] == _WORKER or (target[0].startswith("-") and not is_module):
        return None
    return [*arguments[:index], "-m", _WORKER, *target]


def _following(
    execute: Callable[..., Any],
    *,
    pid: int,
    started_with: Mapping[str, str],
    report_fault: Callable[[str, BaseException], None],
) -> Callable[..., Any]:
    @functools.wraps(execute)
    def execute_measured(path: Any, argv: Any, *env: Any) -> Any:
        if os.getpid() == pid:
            try:
                argv = _measured_here(path, argv, env[0] if env else environ.snapshot(), started_with)
            except Exception as error:  # noqa: BLE001 - the boundary
                report_fault("execution", error)
        try:
            return execute(path, argv, *env)
        except BaseException as error:
            hide_frame(error)
            raise

    return execute_measured


def _measured_here(path: Any, argv: Any, env: Any, started_with: Mapping[str, str]) -> Any:
    """The command line with the worker in it, or as it is where what starts would not find the worker."""
    import shutil  # no other module of ours that every worker needs imports it

    try:
        program, arguments = os.fsdecode(path), [os.fsdecode(word) for word in argv]
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
    except (TypeError, AttributeError):  # no command line: for the system to refuse
        return argv
    is_found = all(variables.get(name) == started_with.get(name) for name in _TELLS_WHERE)
    # Python looks for its own place by the name it is called by, not by the file that is executed.
    if arguments and is_found and _is_this_python(program) and _is_this_python(shutil.which(arguments[0]) or ""):
        return measured(arguments) or argv
    return argv


def _is_this_python(path: str) -> bool:
    """A link of another environment to the same interpreter is not."""
    mine = sys.executable
    try:
        return os.path.dirname(os.path.abspath(path)) == os.path.dirname(mine) and os.path.samefile(path, mine)
    except (OSError, ValueError):  # no such file, and what cannot name one
        return False
