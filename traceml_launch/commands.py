"""The commands of `traceml`, and `run` itself, which `demo` uses too. Imports nothing that training would wait for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from traceml_client.protocol.errors import ConfigError

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
        return refuse("traceml run", str(error))


def refuse(command: str, sentence: str) -> int:
    """One line on standard error; the exit code of a wrong usage."""
    print(f"{command}: {sentence}", file=sys.stderr)
    return EXIT_USAGE
