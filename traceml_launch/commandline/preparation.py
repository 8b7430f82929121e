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
from traceml_launch.commandline import arguments, job_environment, settings
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.commandline.layers import Layers, read_file

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
    variables = environ.snapshot()
    layers = Layers(
        line=line,
        environ=variables,
        file=read_file(Path.cwd()),
        job=job_environment.read(variables),
        folder=Path.cwd(),
    )
    config = settings.build(
        layers,
        num_cpus=len(os.sched_getaffinity(0)),
        new_run_name=new_run_name(),
        is_terminal=sys.stderr.isatty(),
    )
    config = _with_token_of_file(config, layers)
    _check_tls_files(config)
    return _without_telemetry_where_the_ranks_lack_us(config, variables)


def _with_token_of_file(config: LaunchConfig, layers: Layers) -> LaunchConfig:
    """Raises ConfigError."""
    found = layers.find("token-file")
    if found is None:
        return config
    path: Path = layers.get("token-file")
    token = token_file.read_token_file(path, source=found.source)
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
