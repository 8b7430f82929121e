"""The commands of `traceml` that are not on the way to training: the list of commands, the version, the demo."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def open_with(words: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    try:
        app(args=list(words) or ["--help"], prog_name="traceml")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    return 0


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


@app.command("run", context_settings=_PASSED_ON, help="Train a script under torchrun: traceml run --help.")
def _run() -> None:
    """Listed here, taken in `cli.main`."""


@app.command("serve", context_settings=_PASSED_ON, help="The aggregator alone: traceml serve --help.")
def _serve() -> None:
    """Listed here, taken in `cli.main`."""


@app.command("demo", help="Train a small packaged job with two ranks on this machine and print its report.")
def _demo(
    fault: Annotated[str, typer.Option(help="Let it fail: crash (an exception on rank 1) or kill (SIGKILL).")] = "",
    logs_dir: Annotated[str, typer.Option(help="Where the run folder goes.")] = "logs",
    quiet: Annotated[bool, typer.Option("--quiet", help="None of our own lines except errors.")] = False,
) -> None:
    from traceml_launch import demonstration

    raise typer.Exit(demonstration.run(fault=fault, logs_dir=logs_dir, is_quiet=quiet))
