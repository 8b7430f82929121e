"""Starts the launcher around a stand-in for torchrun and looks at what it left."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness.torchrun import RunFolder, RunningCommand, start
from traceml_launch.system import processes

REPOSITORY = Path(__file__).parents[2]
RUN_NAME = "stub"


def launcher_argv(cwd: Path, *command: str, **options: Any) -> list[str]:
    """The launcher's command line; `options` are fields of `LaunchConfig`."""
    settings = {"run_name": RUN_NAME, "logs_dir": str(cwd / "logs"), "linger_s": 0.0, "settle_s": 0.2}
    settings = {**settings, "has_color": False, **options}
    return [sys.executable, "-m", "tests.launch.run_launcher", json.dumps(settings), *command]


def launch(
    cwd: Path, *command: str, stdout: int | None = None, environ: Mapping[str, str] | None = None, **options: Any
) -> RunningCommand:
    """Start the launcher around `command`."""
    argv = launcher_argv(cwd, *command, **options)
    variables = {"PYTHONPATH": str(REPOSITORY), **(environ or {})}
    return start(argv, cwd=cwd, environ=variables, stdout=stdout)


def workers(num_workers: int, code: str, *flags: str) -> list[str]:
    """The stand-in for torchrun with that many workers running `code`."""
    return [sys.executable, "-m", "tests.launch.stub_torchrun", str(num_workers), code, *flags]


def run_folder(cwd: Path) -> RunFolder:
    return RunFolder(cwd / "logs" / RUN_NAME)


def child_pid(command: RunningCommand, sign: str) -> int:
    """The launcher's child whose command line contains `sign`. Raises LookupError if there is not exactly one."""
    found = [each.pid for each in command.find(sign) if each.parent_pid == command.process.pid]
    own = [pid for pid in found if "run_launcher" not in processes.command_of(pid)]
    if len(own) != 1:
        raise LookupError(f"{len(own)} children with {sign!r}")
    return own[0]
