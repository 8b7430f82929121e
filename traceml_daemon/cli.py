"""`traceml-daemon` (also `traceml serve`), `python -m traceml_daemon serve|finalize`, and the commands about runs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceml_client.protocol import environ
from traceml_client.protocol import token_file as token_files
from traceml_client.protocol.command_line import Command, Option, option
from traceml_client.protocol.environ import DEFAULT_AGGREGATOR_PORT
from traceml_client.protocol.errors import ConfigError, TracemlError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


def serve(**flags: str | None) -> None:
    """The aggregator alone, for direct python and torchrun launches, systemd and sidecars."""
    from traceml_daemon import serve_options
    from traceml_daemon.run import replacing, run_dirs

    folder = Path.cwd()
    config, token_file_path = serve_options.build_serve_config(
        {name.replace("_", "-"): value for name, value in flags.items()},
        environ.snapshot(),
        serve_options.read_config_file(folder),
        folder=folder,
    )
    if token_file_path is not None:
        config = dataclasses.replace(config, token=_read_token(token_file_path))
    environ.forget_token()
    run_dirs.make_logs_dir(config.logs_dir)
    replacing.become_daemon(config)


def _read_token(path: Path) -> str:
    """Raises ConfigError."""
    token, exposure = token_files.read_token_file(path, source="--token-file"), token_files.exposure(path)
    if exposure is not None:
        print(f"traceml-daemon: {exposure}", file=sys.stderr)
    return token


def finalize(run_dir: Path, reason: str) -> None:
    """Makes the reports of a run whose daemon is gone, from its database, its recorders and its nodes' reports."""
    from traceml_daemon.run import offline

    offline.finalize(run_dir, reason=offline.parse_reason(reason))


def _text(name: str, metavar: str, meaning: str) -> Option:
    return option(f"--{name}", metavar=metavar, help=meaning)


SERVE: Final = Command(
    serve,
    (
        _text("run-name", "NAME", "the run of ranks without a name of their own"),
        _text("logs-dir", "DIR", "where run folders live [default: logs]"),
        _text("nnodes", "N", "nodes of a direct launch [default: 1]"),
        _text("nproc-per-node", "N", "ranks on each node [default: as the ranks say]"),
        _text("aggregator-port", "PORT", f"0: any free one [default: {DEFAULT_AGGREGATOR_PORT}]"),
        _text("aggregator-bind-host", "HOST", "where to listen [default: 127.0.0.1]"),
        _text("token-file", "FILE", "holds the shared secret; also TRACEML_TOKEN [default: none]"),
        _text("finalize-timeout-sec", "S", "from the end of training to the summary [default: 300]"),
        _text("settle-sec", "S", "quiet time before a run is sealed [default: 1]"),
        _text("tls-cert", "FILE", "encrypted telemetry only [default: none]"),
        _text("tls-key", "FILE", "the key of --tls-cert [default: none]"),
        _text("tls-ca", "FILE", "for ranks; of no meaning here [default: none]"),
    ),
    epilog="Every option also reads TRACEML_<NAME> and traceml.toml in the working directory.",
)
FINALIZE: Final = Command(
    finalize,
    (
        option("run_dir", metavar="RUN_DIR", type=Path, help="the run's folder"),
        option(
            "--reason",
            default="aggregator_died",
            help="why no daemon did it: aggregator_died (default) or aggregator_unresponsive",
        ),
    ),
)


def serve_main() -> int:
    """The console script, and `traceml serve`: the options of `sys.argv`, under the name that stands before them."""
    return _run(SERVE, sys.argv[1:], prog=Path(sys.argv[0]).name)


def run_command(arguments: Sequence[str]) -> int:
    """`python -m traceml_daemon ...`: run one command; return its exit code."""
    command = {"serve": SERVE, "finalize": FINALIZE}.get(arguments[0] if arguments else "")
    if command is None:
        return _complain("traceml-daemon", "the commands are serve and finalize", EXIT_USAGE)
    return _run(command, arguments[1:], prog="traceml-daemon")


def look_at_runs(arguments: Sequence[str]) -> int:
    """`traceml status|view|...`: a run that is not there, or cannot be read, is a wrong usage."""
    from traceml_daemon.commands.run_commands import COMMANDS

    return _run(COMMANDS[arguments[0]], arguments[1:], prog=f"traceml {arguments[0]}", exit_failed=EXIT_USAGE)


def _run(command: Command, words: Sequence[str], *, prog: str, exit_failed: int = EXIT_FAILED) -> int:
    """An error is one line on standard error."""
    try:
        return command.run(words, prog=prog)
    except ConfigError as error:
        return _complain(prog, str(error), EXIT_USAGE)
    except TracemlError as error:
        return _complain(prog, str(error), exit_failed)


def _complain(prog_name: str, text: str, code: int) -> int:
    print(f"{prog_name}: {' '.join(text.split())}", file=sys.stderr)
    return code
