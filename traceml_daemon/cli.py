"""`traceml-daemon` (the same as `traceml serve`), and `python -m traceml_daemon serve|finalize`.

Not imported for `supervise`: typer costs 160 ms, which every `traceml run` would pay.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from traceml_client.protocol import environ
from traceml_client.protocol import token_file as token_files
from traceml_client.protocol.environ import DEFAULT_AGGREGATOR_PORT
from traceml_client.protocol.errors import ConfigError, TracemlError
from traceml_client.protocol.standard_streams import open_closed_streams

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
_ENVIRONMENT: Final = "Every option also reads TRACEML_<NAME> and traceml.toml in the working directory."

_UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""click's own, which newer versions of typer carry in a private copy."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _option(name: str, metavar: str, meaning: str) -> typer.models.OptionInfo:
    return typer.Option(f"--{name}", metavar=metavar, help=meaning)  # type: ignore[no-any-return]


@app.command(epilog=_ENVIRONMENT)
def serve(
    run_name: Annotated[str | None, _option("run-name", "NAME", "the run of ranks without a name of their own")] = None,
    logs_dir: Annotated[str | None, _option("logs-dir", "DIR", "where run folders live [default: logs]")] = None,
    nnodes: Annotated[str | None, _option("nnodes", "N", "nodes of a direct launch [default: 1]")] = None,
    nproc_per_node: Annotated[
        str | None, _option("nproc-per-node", "N", "ranks on each node [default: as the ranks say]")
    ] = None,
    aggregator_port: Annotated[
        str | None, _option("aggregator-port", "PORT", f"0: any free one [default: {DEFAULT_AGGREGATOR_PORT}]")
    ] = None,
    aggregator_bind_host: Annotated[
        str | None, _option("aggregator-bind-host", "HOST", "where to listen [default: 127.0.0.1]")
    ] = None,
    token_file: Annotated[
        str | None, _option("token-file", "FILE", "holds the shared secret; also TRACEML_TOKEN [default: none]")
    ] = None,
    finalize_timeout_sec: Annotated[
        str | None, _option("finalize-timeout-sec", "S", "from the end of training to the summary [default: 300]")
    ] = None,
    settle_sec: Annotated[
        str | None, _option("settle-sec", "S", "quiet time before a run is sealed [default: 1]")
    ] = None,
    tls_cert: Annotated[str | None, _option("tls-cert", "FILE", "encrypted telemetry only [default: none]")] = None,
    tls_key: Annotated[str | None, _option("tls-key", "FILE", "the key of --tls-cert [default: none]")] = None,
    tls_ca: Annotated[str | None, _option("tls-ca", "FILE", "not used here, ranks use it [default: none]")] = None,
) -> None:
    """The aggregator alone, for direct python and torchrun launches, systemd and sidecars."""
    _become_daemon({name.replace("_", "-"): value for name, value in locals().items()})


def _become_daemon(flags: Mapping[str, str | None]) -> None:
    from traceml_daemon import serve_options
    from traceml_daemon.run import replacing, run_dirs

    folder = Path.cwd()
    config, token_file_path = serve_options.build_serve_config(
        flags, environ.snapshot(), serve_options.read_config_file(folder), folder=folder
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


@app.command("finalize")
def finalize_command(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the run's folder")],
    reason: Annotated[
        str, typer.Option(help="why no daemon did it: aggregator_died or aggregator_unresponsive")
    ] = "aggregator_died",
) -> None:
    """Makes the reports of a run whose daemon is gone, from its database, its recorders and its nodes' reports."""
    from traceml_daemon.run.offline import finalize, parse_reason

    finalize(run_dir, reason=parse_reason(reason))


def serve_main() -> int:
    """The console script, and `traceml serve`: the options of `sys.argv`, under the name that stands before them."""
    open_closed_streams()
    serve_only = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    serve_only.command(epilog=_ENVIRONMENT)(serve)
    return _run(serve_only, sys.argv[1:], prog_name=Path(sys.argv[0]).name)


def run_command(arguments: Sequence[str]) -> int:
    """`python -m traceml_daemon ...`: run one command; return its exit code."""
    return _run(app, arguments, prog_name="traceml-daemon")


def look_at_runs(arguments: Sequence[str]) -> int:
    """`traceml status|view|...`: a run that is not there, or cannot be read, is a wrong usage."""
    from traceml_daemon.commands import run_commands

    return _run(run_commands.app, arguments, prog_name="traceml", exit_failed=EXIT_USAGE)


def _run(typed: typer.Typer, arguments: Sequence[str], *, prog_name: str, exit_failed: int = EXIT_FAILED) -> int:
    """An error is one line on standard error."""
    try:
        result = typer.main.get_command(typed).main(list(arguments), prog_name=prog_name, standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        named: Any = error  # its own message names the option, its text alone does not
        return _complain(prog_name, named.format_message(), EXIT_USAGE)
    except ConfigError as error:
        return _complain(prog_name, str(error), EXIT_USAGE)
    except TracemlError as error:
        return _complain(prog_name, str(error), exit_failed)
    except OSError as error:
        if error.filename is None:  # what is left in the buffer would fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # a reader such as `head` that has seen enough; click's own code for it
            return 1
        return _complain(prog_name, f"{error.filename or 'standard output'}: {error.strerror}", exit_failed)
    return result if isinstance(result, int) else 0


def _complain(prog_name: str, text: str, code: int) -> int:
    print(f"{prog_name}: {' '.join(text.split())}", file=sys.stderr)
    return code
