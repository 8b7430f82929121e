"""From the words behind `traceml run` to a `LaunchConfig`: the part that looks at this machine and moment."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from traceml_client.protocol import environ, token_file
from traceml_launch.commandline import arguments, settings, toml_file
from traceml_launch.commandline.config import LaunchConfig

PROBE_S = 20.0
"""For another interpreter to say whether it has our client; longer than a cold start from a network disk takes."""


def prepare(words: Sequence[str]) -> LaunchConfig | None:
    """Return the launch, or null after printing the help.

    Raises:
        ConfigError: one line that names the option, variable or file.
    """
    line = arguments.split(words)
    if line.is_help_wanted:
        from traceml_launch.commandline import help_text

        sys.stdout.write(help_text.run_help(width=min(shutil.get_terminal_size().columns, 120)))
        return None
    folder = Path.cwd()
    around = settings.Surroundings(
        environ=environ.snapshot(),
        file=toml_file.read(folder),
        folder=folder,
        num_cpus=len(os.sched_getaffinity(0)),
        new_run_name=new_run_name(),
        is_terminal=sys.stderr.isatty(),
    )
    config = settings.build(line, around)
    named = settings.token_file(line, around)
    if named is not None:
        config = _with_token(config, *named)
    _check_tls_files(config)
    return _without_telemetry_where_the_ranks_lack_us(config, around.environ)


def _with_token(config: LaunchConfig, source: str, path: Path) -> LaunchConfig:
    """Raises ConfigError."""
    token = token_file.read_token_file(path, source=source)
    exposure = token_file.exposure(path)
    return dataclasses.replace(config, token=token, notices=(*config.notices, *filter(None, [exposure])))


def new_run_name() -> str:
    """Time and a random id: sorts by age, and two launches of one second do not meet."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _check_tls_files(config: LaunchConfig) -> None:
    """Raises ConfigError: a file cannot be read, or does not fit the others."""
    if config.tls_trust is None:
        return
    from traceml_client.protocol import tls

    tls.client_context(tls.TlsTrust(*config.tls_trust))
    if config.tls_key is not None:
        tls.server_context(str(config.tls_cert), str(config.tls_key))


def _without_telemetry_where_the_ranks_lack_us(config: LaunchConfig, variables: Mapping[str, str]) -> LaunchConfig:
    """torchrun starts workers with PYTHON_EXEC where it is set; one without our client could not even train."""
    python = variables.get("PYTHON_EXEC", "")
    if not python or python == sys.executable or config.is_disabled:
        return config
    try:
        probe = subprocess.run([python, "-c", "import traceml_client.worker"], capture_output=True, timeout=PROBE_S)
        has_client = probe.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        has_client = False
    if has_client:
        return config
    notice = f"PYTHON_EXEC={python} has no traceml_client: training runs without telemetry (install it there)"
    return dataclasses.replace(config, is_disabled=True, notices=(*config.notices, notice))
