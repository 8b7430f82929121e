"""Launches as a command line would make them, on a machine that is always the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traceml_launch.commandline import job_environment
from traceml_launch.commandline.arguments import split
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.commandline.layers import Layers
from traceml_launch.commandline.settings import build

FOLDER = Path("/somewhere")
"""The working directory of these launches; nothing is ever read or written there."""


def layers(words: str, environ: dict[str, str] | None = None, file: dict[str, str] | None = None) -> Layers:
    environ = environ or {}
    job = job_environment.read(environ)
    return Layers(line=split(words.split()), environ=environ, file=file or {}, job=job, folder=FOLDER)


def launch(
    words: str, environ: dict[str, str] | None = None, file: dict[str, str] | None = None, **more: Any
) -> LaunchConfig:
    """The launch that `traceml run WORDS` makes with these variables and this traceml.toml."""
    return build(layers(words, environ, file), num_cpus=6, new_run_name="20260101-000000-abcdef", **more)
