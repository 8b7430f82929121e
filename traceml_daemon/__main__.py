"""`python -m traceml_daemon supervise|serve|finalize`. `supervise` is what a launcher starts; it skips the CLI."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["supervise"]:
        return _supervise(arguments[1:])
    from traceml_daemon.cli import run_command

    return run_command(arguments)


def _supervise(arguments: Sequence[str]) -> int:
    fds = dict(zip(arguments[::2], arguments[1::2], strict=False))
    if len(arguments) != 4 or not all(fds.get(name, "").isdecimal() for name in ("--config-fd", "--ready-fd")):
        print("usage: python -m traceml_daemon supervise --config-fd N --ready-fd N", file=sys.stderr)
        return 2
    from traceml_daemon.service import supervise

    return supervise(int(fds["--config-fd"]), int(fds["--ready-fd"]))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a report thread that hangs on a dead disk must not keep the process
