"""`python -m traceml_daemon serve|finalize`, and two commands for ourselves that skip the command line's libraries.

`supervise` is what a launcher starts; `serving` is what `serve` becomes once its options are read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from traceml_client.protocol.standard_streams import open_closed_streams


def main(arguments: Sequence[str]) -> int:
    open_closed_streams()
    match list(arguments):
        case ["supervise", "--config-fd", config_fd, "--ready-fd", ready_fd] if (config_fd + ready_fd).isdecimal():
            from traceml_daemon.service import supervise

            return supervise(int(config_fd), int(ready_fd))
        case ["serving", "--config-fd", config_fd] if config_fd.isdecimal():
            from traceml_daemon.serving import serve

            return serve(int(config_fd))
    from traceml_daemon.cli import run_command

    return run_command(arguments)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a report thread that hangs on a dead disk must not keep the process
