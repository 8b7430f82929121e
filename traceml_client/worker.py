"""What torchrun starts in every rank: `... -m traceml_client.worker [-m MODULE | --exec PROGRAM | SCRIPT] ARGUMENTS`.

Takes the rank's pipes and ring from its launcher, starts telemetry, and then runs the script as Python would have.
Nothing that goes wrong before the script keeps it from running.
"""

from __future__ import annotations

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory: our own imports must not find the script's neighbours

import os
from typing import TYPE_CHECKING, NoReturn

from traceml_client import script
from traceml_client.faults import FAULTS, say

if TYPE_CHECKING:
    from traceml_client.handover import Handover

_USAGE = "usage: python -m traceml_client.worker [-m MODULE | --exec PROGRAM | SCRIPT] [ARGUMENTS...]"


class _Unobserved:
    """Where telemetry could not be started."""

    def on_error(self, error: BaseException) -> None:
        pass

    def on_exit(self, code: int, error: SystemExit | None = None) -> None:
        pass


def _start(*, is_measured: bool) -> tuple[Handover | None, script.Observer]:
    """The hand-over, and telemetry unless the rank is to become another program. Where that fails one line says so."""
    try:
        from traceml_client import client
        from traceml_client.execution import follow_executions
    except ImportError as error:
        say(f"no telemetry, this environment lacks what it needs: {error}")
        return None, _Unobserved()
    handover = client.take_from_launcher()
    running = client.start_in_worker(handover) if handover and is_measured else None
    if running:
        follow_executions(FAULTS.report)
    return handover, running or _Unobserved()


def main(arguments: list[str]) -> None:
    """Run what the arguments name. Raises SystemExit or KeyboardInterrupt as it ends."""
    kind = arguments[0] if arguments and arguments[0] in ("-m", "--exec") else None
    target = arguments[1:] if kind else arguments
    if not target:
        print(_USAGE, file=sys.stderr)
        raise SystemExit(2)
    handover, observer = _start(is_measured=kind != "--exec")
    if kind == "--exec":
        _execute(target, handover)
    if not getattr(
        sys.stdout, "write_through", True
    ):  # torchrun passes -u; without it, last words must not be buffered
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    (script.run_module if kind else script.run_script)(target[0], target[1:], observer)


def _execute(target: list[str], handover: Handover | None) -> NoReturn:
    """Become another program, on the rank's pipes. Its launcher still sees how it ends; its steps are not measured."""
    if handover:
        for stream in handover.streams:
            os.set_inheritable(stream.read_end.fd, True)  # so that printing goes on if the launcher is killed
    try:
        os.execvp(target[0], target)
    except OSError as error:
        say(f"cannot execute {target[0]!r}: {error.strerror}")
        raise SystemExit(127 if isinstance(error, FileNotFoundError) else 126) from None


if __name__ == "__main__":
    main(sys.argv[1:])
