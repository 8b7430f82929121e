"""Pure: the help of `traceml run`, made from the table of options."""

from __future__ import annotations

import textwrap

from traceml_launch.commandline import torchrun_options
from traceml_launch.commandline.options import OPTIONS, Option, documented

USAGE = "traceml run [OPTIONS] SCRIPT [ARGS...]"
_INTRODUCTION = """\
Trains SCRIPT under torchrun on this node, keeps what it prints, measures every step without an edit, and writes a
report to LOGS_DIR/RUN_NAME. The exit code is training's; 2 is an error in the usage.
"""
_RULES = """\
Options of torchrun stand before SCRIPT too and are passed on. -m MODULE runs a module, --no-python a program. Behind
SCRIPT only --word-word spellings of the options without (+) are ours; behind -- or --args nothing is.

A value comes from the option, else from its variable, else from traceml.toml in the working directory (run-name =
"x"), else from the job's environment (Slurm, PET_*), else it is the default. TRACEML_TOKEN holds the shared secret of a
run on several nodes. NO_COLOR switches colors off.
"""
_METAVARS = {"flag": "", "count": "N", "nproc": "N", "nnodes": "N", "run_name": "NAME"}


def run_help(*, width: int) -> str:
    """The text of `traceml run --help`; option names, defaults and variables are never broken over lines."""
    parts = [f"Usage: {USAGE}\n", _fill(_INTRODUCTION, width), "Options:"]
    parts += [_entry(option, width) for option in documented()]
    parts.append(_fill("Passed on to torchrun: " + " ".join(torchrun_options.PASSED_ON), width, indent="  "))
    parts.append(_fill("Not in this version: " + ", ".join(_later_names()), width, indent="  "))
    parts += [_fill(paragraph, width) for paragraph in _RULES.split("\n\n")]
    return "\n".join(parts)


def _entry(option: Option, width: int) -> str:
    metavar = "|".join(option.accepted or option.choices) or _METAVARS.get(option.kind, option.kind.upper())
    head = ", ".join(option.spellings) + (f" {metavar}" if metavar else "") + ("  (+)" if option.is_extra else "")
    body = _fill(option.meaning, width, indent="        ")
    facts = _fill(f"[env: {option.variable}] [default: {option.default}]", width, indent="        ")
    return f"  {head}\n{body}{facts}".rstrip("\n")


def _later_names() -> list[str]:
    return [option.name for option in OPTIONS if option not in documented()] + ["--mode cli", "--mode dashboard"]


def _fill(text: str, width: int, indent: str = "") -> str:
    filled = textwrap.fill(
        " ".join(text.split()),
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled + "\n"
