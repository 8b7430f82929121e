"""The commands of `traceml` that are not on the way to training: the list of commands, the version, the demo."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Final

from traceml_client.protocol.command_line import Command, option
from traceml_client.protocol.errors import ConfigError
from traceml_launch.cli import OFFLINE_COMMANDS, refuse

_LISTED: Final = {
    "run": "Train a script under torchrun.",
    "serve": "The aggregator alone.",
    "demo": "Train a small packaged job with two ranks on this machine and print its report.",
    **OFFLINE_COMMANDS,
}


def open_with(words: Sequence[str]) -> int:
    """Run the command; return its exit code. An error in the usage is one line on standard error."""
    if not words or words[0] in ("--help", "-h"):
        print(_help())
        return 0
    if words[0] == "--version":
        print(f"traceml {metadata.version('traceml-daemon')}")
        return 0
    if words[0] != "demo":
        return refuse("traceml", f"unknown option {words[0]}")
    try:
        return DEMO.run(words[1:], prog="traceml demo")
    except ConfigError as error:
        return refuse("traceml demo", str(error))


def _help() -> str:
    lines = ["Usage: traceml COMMAND [OPTIONS]\n"]
    lines += ["Keeps what a torchrun job prints and measures, and says which rank failed first and why.\n"]
    lines += [f"  {name:8}  {meaning}" for name, meaning in _LISTED.items()]
    return "\n".join([*lines, "\ntraceml COMMAND --help: its options. traceml --version: the version."])


def demo(fault: str, logs_dir: str, is_quiet: bool) -> int:
    """Train a small packaged job with two ranks on this machine and print its report."""
    from traceml_launch import demonstration

    return demonstration.run(fault=fault, logs_dir=logs_dir, is_quiet=is_quiet)


DEMO: Final = Command(
    demo,
    (
        option("--fault", default="", help="let it fail: crash (an exception on rank 1) or kill (SIGKILL)"),
        option("--logs-dir", default="logs", help="where the run folder goes"),
        option("--quiet", dest="is_quiet", action="store_true", help="none of our own lines except errors"),
    ),
)
