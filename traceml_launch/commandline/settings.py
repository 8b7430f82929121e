"""Pure: everything that was said about the options -> one validated `LaunchConfig`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceml_client.protocol.environ import DEFAULT_AGGREGATOR_PORT, TOKEN
from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline import job_environment
from traceml_launch.commandline.arguments import CommandLine
from traceml_launch.commandline.config import LaunchConfig, Target
from traceml_launch.commandline.layers import Layers
from traceml_launch.commandline.rendezvous import Placement, place
from traceml_launch.commandline.values import as_run_name

DEFAULT_SHUTDOWN_TIMEOUT_S = 30.0
"""torchrun's."""
LOOPBACK = "127.0.0.1"
RESERVED_OF_GRACE_S = 7.0
"""Of a known deadline: 5 s between torchrun's own SIGKILL and ours, and 2 s to write the reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What this machine and moment add."""

    environ: Mapping[str, str]
    file: Mapping[str, str]
    """Options of traceml.toml: key -> text."""
    folder: Path
    """The working directory, absolute."""
    num_cpus: int
    new_run_name: str
    """Time and a random id."""
    is_terminal: bool = False
    """Standard error is one."""


def build(line: CommandLine, around: Surroundings) -> LaunchConfig:
    """Return the launch that the user asked for.

    Raises:
        ConfigError: one line that names the option, variable or file. A token file is not read here.
    """
    target = line.target
    layers = Layers(line=line, environ=around.environ, file=around.file, job=job_environment.read(around.environ))
    layers.refuse_later()
    tls: dict[str, Any] = {key: _file(layers, key, around.folder) for key in ("tls-cert", "tls-key", "tls-ca")}
    placement = place(layers, num_cpus=around.num_cpus)
    run_name, is_explicit = _run_name(layers, placement, around.new_run_name)
    grace_s = layers.get("grace-sec", float)
    shutdown_timeout_s = _shutdown_timeout_s(layers, grace_s)
    config = LaunchConfig(
        target=_target(layers, target),
        torchrun_options=_torchrun_options(layers, grace_s, shutdown_timeout_s),
        run_name=run_name,
        is_run_name_explicit=is_explicit,
        logs_dir=around.folder / (layers.get("logs-dir", Path) or Path("logs")),
        token=around.environ.get(TOKEN, ""),
        grace_s=grace_s,
        shutdown_timeout_s=shutdown_timeout_s,
        is_quiet=layers.is_set("quiet"),
        has_color=around.is_terminal and not around.environ.get("NO_COLOR") and around.environ.get("TERM") != "dumb",
        **dataclasses.asdict(placement),
        **_aggregator(layers, placement),
        **_recording(layers),
        **{key.replace("-", "_"): path for key, path in tls.items()},
        notices=_notices(layers),
    )
    _check_tls(config)
    return config


def _file(layers: Layers, key: str, folder: Path) -> Path | None:
    path = layers.get(key, Path)
    return None if path is None else folder / path


def _check_tls(config: LaunchConfig) -> None:
    """The files themselves are looked at later."""
    may_serve = config.role != "peer" and not config.attach and not config.is_disabled
    if config.tls_key is not None and config.tls_cert is None:
        raise ConfigError("--tls-key needs --tls-cert, the certificate that it belongs to")
    if may_serve and config.tls_cert is not None and config.tls_key is None:
        raise ConfigError("--tls-cert needs --tls-key on the node that runs the aggregator")
    if may_serve and config.tls_ca is not None and config.tls_cert is None:
        raise ConfigError("--tls-ca needs --tls-cert and --tls-key on the node that runs the aggregator")


def token_file(line: CommandLine, around: Surroundings) -> tuple[str, Path] | None:
    """Where the secret stands, with the source of that; null if no file was named."""
    layers = Layers(line=line, environ=around.environ, file=around.file, job=job_environment.JobEnvironment())
    found = layers.find("token-file")
    path = layers.get("token-file", Path)
    return None if found is None or path is None else (found.source, around.folder / path)


def _run_name(layers: Layers, placement: Placement, new_run_name: str) -> tuple[str, bool]:
    """The name, and whether the user chose it."""
    found = layers.find("run-name")
    if found is not None and not found.is_derived:
        return layers.get("run-name", str) or "", True
    group = layers.torchrun("--rdzv-id")
    if placement.nnodes_max > 1 and group not in ("", "none") and as_run_name(group):
        return as_run_name(group), False
    if found is not None and as_run_name(found.text):
        layers.derived.append(f"--run-name {as_run_name(found.text)} ({found.source})")
        return as_run_name(found.text), False
    if placement.nnodes_max > 1:
        raise ConfigError("--run-name is missing: with several nodes give all of them the same --run-name or --rdzv-id")
    return new_run_name, False


def _target(layers: Layers, target: Target) -> Target:
    """PET_MODULE and PET_NO_PYTHON say the same as torchrun's switches."""
    if target.kind == "script" and layers.torchrun("--no-python"):
        return dataclasses.replace(target, kind="program")
    if target.kind == "script" and layers.torchrun("--module"):
        return dataclasses.replace(target, kind="module")
    return target


def _shutdown_timeout_s(layers: Layers, grace_s: float | None) -> float:
    text = layers.torchrun("--shutdown-timeout") or layers.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")
    timeout_s = float(text) if text.isdigit() else DEFAULT_SHUTDOWN_TIMEOUT_S
    return timeout_s if grace_s is None else min(timeout_s, max(1.0, float(int(grace_s - RESERVED_OF_GRACE_S))))


def _torchrun_options(layers: Layers, grace_s: float | None, shutdown_timeout_s: float) -> tuple[str, ...]:
    words = layers.torchrun_words()
    if layers.torchrun("--run-path") and "--run-path" not in layers.line.torchrun_values:
        words.append("--run-path")
    if grace_s is not None and layers.torchrun("--shutdown-timeout"):
        words += ["--shutdown-timeout", str(int(shutdown_timeout_s))]  # the last one wins
    return tuple(words)


def _aggregator(layers: Layers, placement: Placement) -> dict[str, Any]:
    is_multi_node = placement.nnodes_max > 1
    bind_host = layers.get("aggregator-bind-host", str)
    port = layers.get("aggregator-port", int)
    return {
        "aggregator_host": layers.get("aggregator-host", str) or _aggregator_host(layers, placement, bind_host),
        "aggregator_port": port or DEFAULT_AGGREGATOR_PORT,
        "is_port_explicit": port is not None,
        "bind_host": bind_host or ("0.0.0.0" if is_multi_node else LOOPBACK),
        "attach": layers.is_set("attach"),
        "on_missing_aggregator": layers.get("on-missing-aggregator", str) or "warn",
        "finalize_timeout_s": _seconds(layers, "finalize-timeout-sec", 300.0),
        "settle_s": _seconds(layers, "settle-sec", 1.0),
        "linger_s": _seconds(layers, "linger-sec", 30.0),
    }


def _aggregator_host(layers: Layers, placement: Placement, bind_host: str | None) -> str:
    if placement.nnodes_max > 1:
        is_addr_given = layers.find("master-addr") is not None
        return placement.master_addr if is_addr_given else placement.rdzv_endpoint_host or placement.master_addr
    return LOOPBACK if bind_host in (None, "0.0.0.0", "::") else bind_host


def _recording(layers: Layers) -> dict[str, Any]:
    streams = ("--redirects", "--tee")
    log_dir = layers.torchrun("--log-dir")
    return {
        "is_output_saved": not layers.is_set("no-save-training-output"),
        "are_streams_torchruns": any(layers.torchrun(name) not in ("", "0") for name in streams)
        or bool(layers.torchrun("--logs-specs")),
        "torchrun_log_dir": Path(log_dir) if log_dir else None,
        "max_log_bytes": layers.get("max-log-bytes", int) or 0,
        "has_history": not layers.is_set("no-history"),
        "has_html": layers.is_set("html-report"),
        "trace_max_steps": layers.get("trace-max-steps", int),
        "is_disabled": layers.is_set("disable-traceml"),
        "overwrite": layers.is_set("overwrite"),
    }


def _seconds(layers: Layers, key: str, default: float) -> float:
    value = layers.get(key, float)
    return default if value is None else value


def _notices(layers: Layers) -> tuple[str, ...]:
    notices = []
    if layers.derived:
        notices.append(f"From {layers.job.scheduler}: {', '.join(layers.derived)}")
    if layers.line.taken_behind_script:
        taken = " ".join(layers.line.taken_behind_script)
        notices.append(f"Taken from behind the script as options of ours: {taken} (behind -- all is the script's)")
    return tuple(notices)
