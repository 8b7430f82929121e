"""The commands of `traceml` that are not on the way to training: the list of commands, the version, the demo."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from traceml_launch.cli import COMMANDS, EXIT_USAGE

_UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""click's own, which newer versions of typer carry in a private copy."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def open_with(words: Sequence[str]) -> int:
    """Run the command; return its exit code. An error in the usage is one line on standard error."""
    command = typer.main.get_command(app)
    try:
        result = command.main(list(words) or ["--help"], prog_name="traceml", standalone_mode=False)
    except _UsageError as error:
        print(f"traceml: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USAGE
    return result if isinstance(result, int) else 0


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"traceml {metadata.version('traceml-daemon')}")
        raise typer.Exit


@app.callback(help="Keeps what a torchrun job prints and measures, and says which rank failed first and why.")
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def _demo(
    fault: Annotated[
        str, typer.Option(metavar="NAME", help="let rank 1 fail: crash (an exception) or kill (SIGKILL)")
    ] = "",
    logs_dir: Annotated[str, typer.Option(metavar="DIR", help="where the run folder goes")] = "logs",
    quiet: Annotated[bool, typer.Option("--quiet", help="none of our own lines except errors")] = False,
) -> None:
    from traceml_launch import demonstration

    raise typer.Exit(demonstration.run(fault=fault, logs_dir=logs_dir, is_quiet=quiet))


def _listed() -> None:
    """Listed here, taken in `cli.main`."""


for _name, _help in COMMANDS.items():
    if _name == "demo":
        app.command(_name, help=_help)(_demo)
    else:
        app.command(_name, context_settings=_PASSED_ON, help=_help)(_listed)
