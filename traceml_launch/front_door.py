"""The commands of `traceml` that are not on the way to training: the list of commands, the version, the demo."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from traceml_client.protocol import environ
from traceml_launch.commandline.options import suggestion
from traceml_launch.commandline.preparation import new_run_name
from traceml_launch.commands import COMMANDS, EXIT_USAGE, run_command

_UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""click's own, which newer versions of typer carry in a private copy."""

FAULTS = ("crash", "kill")
LATER_FAULTS = ("hang",)
NUM_RANKS = 2
REPORTS = ("final_summary.txt", "failure_report.txt")

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
    refusal = _refusal(fault)
    if refusal:
        print(f"traceml demo: {refusal}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE)
    run_name = f"demo-{new_run_name()}"
    environ.set_default("GLOO_SOCKET_IFNAME", "lo")  # a laptop's host name often has no address that gloo can use
    words = ["--nnodes", "1", "--nproc-per-node", str(NUM_RANKS), "--run-name", run_name, "--logs-dir", logs_dir]
    words += ["--quiet"] if quiet else []
    code = run_command([*words, "--", str(_script()), "--fault", fault or "none"])
    _print_report(Path(logs_dir) / run_name)
    raise typer.Exit(code)


def _refusal(fault: str) -> str:
    if fault in LATER_FAULTS:
        return f"--fault {fault} is not in this version of TraceML"
    if fault and fault not in FAULTS:
        return f"--fault {fault} is not one of {', '.join(FAULTS)}{suggestion(fault, FAULTS)}"
    if importlib.util.find_spec("torch") is None:
        return "the demo trains with torch, which is not installed: pip install torch"
    return ""


def _script() -> Path:
    return Path(__file__).parent / "demo" / "train.py"


def _print_report(run_dir: Path) -> None:
    """The summary, which begins with the failure if there was one; the failure alone where no summary was written."""
    for path in (run_dir / name for name in REPORTS):
        if path.is_file():
            print(f"\n{path}\n\n{path.read_text(encoding='utf-8', errors='replace').rstrip()}", flush=True)
            return


def _listed() -> None:
    """Listed here, taken in `cli.main`."""


for _name, _help in COMMANDS.items():
    if _name == "demo":
        app.command(_name, help=_help)(_demo)
    else:
        app.command(_name, context_settings=_PASSED_ON, help=_help)(_listed)
