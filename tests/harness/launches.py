"""Launches as a command line would make them, on a machine that is always the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traceml_launch.commandline.arguments import split
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.commandline.settings import Surroundings, build

FOLDER = Path("/somewhere")
"""The working directory of these launches; nothing is ever read or written there."""


def surroundings(
    environ: dict[str, str] | None = None, file: dict[str, str] | None = None, **more: Any
) -> Surroundings:
    return Surroundings(
        environ=environ or {}, file=file or {}, folder=FOLDER, num_cpus=6, new_run_name="20260101-000000-abcdef", **more
    )


def launch(words: str, environ: dict[str, str] | None = None, file: dict[str, str] | None = None) -> LaunchConfig:
    """The launch that `traceml run WORDS` makes with these variables and this traceml.toml."""
    return build(split(words.split()), surroundings(environ, file))
