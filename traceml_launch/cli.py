"""The front door: `traceml` with its commands, and `traceml-launch`, which is `traceml run`.

`run` is taken before anything else is imported: what it costs is time that training has not started yet.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline.options import suggestion

EXIT_USAGE = 2
COMMANDS = {
    "run": "Train a script under torchrun, supervised and measured.",
    "demo": "Train a small packaged job with two ranks; print its report.",
    "status": "The state of a live or past run.",
    "view": "Print a run's report again; make it first where nobody did.",
    "diagnose": "Which rank failed first, and why: of a run or of any logs.",
    "explain": "What a cause of failure, an exit code or a signal means.",
    "verify": "Whether the diagnosed cause of a failed run is still there.",
    "compare": "What changed from one run to another; many as a table.",
    "prune": "Remove old run folders, never a live one.",
    "serve": "The aggregator alone, for direct launches and systemd.",
}
LATER_COMMANDS = ("stacks",)


def main() -> int:
    """`traceml`: returns the exit code of the command."""
    _open_closed_streams()
    words = sys.argv[1:]
    name = words[0] if words else ""
    if name == "run":
        return run_command(words[1:])
    if name == "serve":
        return _serve(words[1:])
    if name in COMMANDS and name != "demo":
        return _look_at_runs(words)
    if name in LATER_COMMANDS:
        return _refuse("traceml", f"the command {name} is not in this version of TraceML")
    if name and not name.startswith("-") and name != "demo":
        nearest = suggestion(name, [*COMMANDS, *LATER_COMMANDS]) or f"; the commands are {', '.join(COMMANDS)}"
        return _refuse("traceml", f"unknown command {name}{nearest}")
    front_door = importlib.import_module("traceml_launch.front_door")
    return int(front_door.open_with(words))


def run_main() -> int:
    """`traceml-launch`."""
    _open_closed_streams()
    return run_command(sys.argv[1:])


def run_command(words: Sequence[str]) -> int:
    """`traceml run`: returns training's exit code, or 2 with one line where the usage is wrong."""
    from traceml_launch.commandline import preparation

    try:
        config = preparation.prepare(words)
        if config is None:
            return 0
        from traceml_launch import supervise

        return supervise.run(config)
    except ConfigError as error:
        return _refuse("traceml run", str(error))


def _open_closed_streams() -> None:
    """After `2>&-` the next file that is opened would be standard error, and receive what is printed there."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))


def _serve(words: Sequence[str]) -> int:
    from traceml_daemon import cli as daemon_cli

    sys.argv[:] = ["traceml serve", *words]
    return int(daemon_cli.serve_main() or 0)


def _look_at_runs(words: Sequence[str]) -> int:
    from traceml_daemon import cli as daemon_cli

    return int(daemon_cli.look_at_runs(words))


def _refuse(command: str, sentence: str) -> int:
    print(f"{command}: {sentence}", file=sys.stderr)
    return EXIT_USAGE
