"""The front door: `traceml` with its commands, and `traceml-launch`, which is `traceml run`.

`run` is taken before anything else is imported: what it costs is time that training has not started yet.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from traceml_client.protocol.standard_streams import open_closed_streams
from traceml_launch.commandline.options import suggestion
from traceml_launch.commands import COMMANDS, LATER_COMMANDS, refuse, run_command


def main() -> int:
    """`traceml`: returns the exit code of the command."""
    open_closed_streams()
    words = sys.argv[1:]
    name = words[0] if words else ""
    if name == "run":
        return run_command(words[1:])
    if name == "serve":
        return _serve(words[1:])
    if name in COMMANDS and name != "demo":
        return _look_at_runs(words)
    if name in LATER_COMMANDS:
        return refuse("traceml", f"the command {name} is not in this version of TraceML")
    if name and not name.startswith("-") and name != "demo":
        nearest = suggestion(name, [*COMMANDS, *LATER_COMMANDS]) or f"; the commands are {', '.join(COMMANDS)}"
        return refuse("traceml", f"unknown command {name}{nearest}")
    from traceml_launch import front_door

    return front_door.open_with(words)


def run_main() -> int:
    """`traceml-launch`."""
    open_closed_streams()
    return run_command(sys.argv[1:])


def _serve(words: Sequence[str]) -> int:
    from traceml_daemon import cli as daemon_cli

    sys.argv[:] = ["traceml serve", *words]
    return int(daemon_cli.serve_main() or 0)


def _look_at_runs(words: Sequence[str]) -> int:
    from traceml_daemon import cli as daemon_cli

    return int(daemon_cli.look_at_runs(words))
