"""Modules and commands that could not be found. They are looked for and neither imported nor started."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceml_daemon.verify.case import Case, CheckResult, gone, not_checkable, printable, still_there, texts

_FRAME: Final = re.compile(r'File "(/[^"\n]+)", line \d+')
_BINARY: Final = re.compile(r"of binary: (/\S+)")
_MAX_FOLDERS: Final = 50


def module_found(case: Case) -> CheckResult:
    """In the Python that runs us, which is the one that `traceml run` gives to torchrun, and beside the script."""
    name = case.values("module, only something inside one")[0].strip(".")
    if not all(part.isidentifier() for part in name.split(".")):
        return not_checkable(f"{printable(name)} is no name of a module")
    other = _other_python(case)
    if other is not None:
        return not_checkable(f"the ranks ran {printable(other)}, and this is {sys.executable}")
    if _is_found(name, _script_folders(case)):
        return gone(f"module {name} is found by {sys.executable}; it was not imported")
    return still_there(f"module {name} is not found by {sys.executable}")


def command_found(case: Case) -> CheckResult:
    name = case.values("command")[0]
    if name.startswith("/"):
        is_file = Path(name).is_file()
        return gone(f"{printable(name)} is a file") if is_file else still_there(f"{printable(name)} is no file")
    if "/" in name or name.endswith(".py"):
        return not_checkable(f"{printable(name)} is relative to a folder that the evidence does not name")
    place = shutil.which(name, path=case.environ.get("PATH", os.defpath))
    if place is None:
        return still_there(f"{printable(name)} is not on PATH here")
    return gone(f"{printable(name)} is {printable(place)}")


def _is_found(name: str, folders: Sequence[str]) -> bool:
    first, *rest = name.split(".")
    spec = _find_top(first, folders)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = importlib.machinery.PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec is not None


def _find_top(name: str, folders: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    return spec or importlib.machinery.PathFinder.find_spec(name, list(folders))


def _script_folders(case: Case) -> list[str]:
    """Folders of the files in the traceback: a script finds its neighbours."""
    folders = dict.fromkeys(str(Path(path).parent) for text in texts(case) for path in _FRAME.findall(text))
    return list(folders)[:_MAX_FOLDERS]


def _other_python(case: Case) -> str | None:
    """The ranks' interpreter, where torchrun's own line says that it was not ours."""
    for text in texts(case):
        for path in _BINARY.findall(text):
            return None if os.path.realpath(path) == os.path.realpath(sys.executable) else str(path)
    return None
