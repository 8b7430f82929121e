"""Pure: everything that was said about the options -> one validated `LaunchConfig`."""

from __future__ import annotations

import dataclasses
from typing import Any

from traceml_client.protocol.environ import TOKEN
from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline.config import LaunchConfig, Target
from traceml_launch.commandline.job_environment import host_of
from traceml_launch.commandline.layers import Layers
from traceml_launch.commandline.options import OPTIONS
from traceml_launch.commandline.values import as_run_name

LOOPBACK = "127.0.0.1"
DEFAULT_MASTER_PORT = 29500
DEFAULT_SHUTDOWN_TIMEOUT_S = 30.0
"""torchrun's, both."""
RESERVED_OF_GRACE_S = 7.0
"""Of a known deadline: 5 s between torchrun's own SIGKILL and ours, and 2 s to write the reports."""

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(LaunchConfig)}


def build(layers: Layers, *, num_cpus: int, new_run_name: str, is_terminal: bool = False) -> LaunchConfig:
    """Return the launch that the user asked for.

    Args:
        new_run_name: time and a random id, for a run that nobody named.
        is_terminal: standard error is one.

    Raises:
        ConfigError: one line that names the option, variable or file. A token file is not read here.
    """
    target = _target(layers)
    layers.refuse_later()
    nodes = _nodes(layers, num_cpus)
    run_name, is_explicit = _run_name(layers, new_run_name, is_multi_node=nodes["nnodes_max"] > 1)
    config = LaunchConfig(
        target=target,
        run_name=run_name,
        is_run_name_explicit=is_explicit,
        token=layers.environ.get(TOKEN, ""),
        has_color=is_terminal and not layers.environ.get("NO_COLOR") and layers.environ.get("TERM") != "dumb",
        notices=_notices(layers, run_name),
        **nodes,
        **_torchruns(layers),
        **_aggregator(layers, is_multi_node=nodes["nnodes_max"] > 1),
        **_single(layers),
    )
    _check_tls(config)
    return config


def _target(layers: Layers) -> Target:
    """PET_MODULE and PET_NO_PYTHON say the same as torchrun's switches."""
    target = layers.line.target
    if target.kind == "script" and layers.torchrun("--no-python"):
        return dataclasses.replace(target, kind="program")
    if target.kind == "script" and layers.torchrun("--module"):
        return dataclasses.replace(target, kind="module")
    return target


def _single(layers: Layers) -> dict[str, Any]:
    """The fields that are one option each, where somebody said something."""
    fields: dict[str, Any] = {"logs_dir": layers.folder / "logs"}
    for option in OPTIONS:
        value = layers.get(option.key) if option.fills else None
        if value is not None:
            is_flag = option.kind == "flag"
            fields[option.fills] = _DEFAULTS[option.fills] is not value if is_flag else value
    return fields


def _nodes(layers: Layers, num_cpus: int) -> dict[str, Any]:
    """How many nodes and workers there are, which node this is, and where they meet."""
    nnodes_min, nnodes_max = layers.get("nnodes") or (1, 1)
    _forget_the_job_of_another_size(layers, nnodes_max)
    is_dynamic = bool(layers.torchrun("--standalone")) or layers.torchrun("--rdzv-backend") not in ("", "static")
    if nnodes_min != nnodes_max and not is_dynamic:
        raise ConfigError(f"--nnodes {nnodes_min}:{nnodes_max} needs a rendezvous backend, such as --rdzv-backend c10d")
    num_workers = layers.get("nproc-per-node") or "1"
    default_port = DEFAULT_MASTER_PORT if nnodes_max > 1 and not is_dynamic else None
    return {
        "nnodes_min": nnodes_min,
        "nnodes_max": nnodes_max,
        "num_local_ranks": num_cpus if num_workers == "cpu" else int(num_workers) if num_workers.isdigit() else 0,
        "node_rank": _node_rank(layers, nnodes_max, is_dynamic=is_dynamic),
        "is_dynamic_rendezvous": is_dynamic,
        "master_port": layers.get("master-port") or default_port,
    }


def _forget_the_job_of_another_size(layers: Layers, nnodes_max: int) -> None:
    """A user who launches fewer nodes than the job has does not mean the job's node ranks and first node."""
    _, of_job = layers.job.values.get("nnodes", ("", ""))
    if of_job and of_job not in (str(nnodes_max), f"{nnodes_max}:{nnodes_max}") and "nnodes" not in layers.derived():
        for key in ("node-rank", "master-addr", "master-port"):
            layers.job.values.pop(key, None)


def _node_rank(layers: Layers, nnodes_max: int, *, is_dynamic: bool) -> int | None:
    found, node_rank = layers.find("node-rank"), layers.get("node-rank")
    if found is None:
        return None if is_dynamic and nnodes_max > 1 else 0
    if node_rank < nnodes_max:
        return int(node_rank)
    most = nnodes_max - 1
    raise ConfigError(f"{found.source}: {node_rank} is out of range: with --nnodes {nnodes_max} it is 0 to {most}")


def _run_name(layers: Layers, new_run_name: str, *, is_multi_node: bool) -> tuple[str, bool]:
    """The name, and whether the user chose it."""
    found = layers.find("run-name")
    if found is not None and not found.is_derived:
        return layers.get("run-name"), True
    group = layers.torchrun("--rdzv-id")
    if is_multi_node and group not in ("", "none") and as_run_name(group):
        return as_run_name(group), False
    if found is not None and as_run_name(found.text):
        return as_run_name(found.text), False
    if is_multi_node:
        raise ConfigError("--run-name is missing: with several nodes give all of them the same --run-name or --rdzv-id")
    return new_run_name, False


def _torchruns(layers: Layers) -> dict[str, Any]:
    """torchrun's own options, and what follows from them; `--grace-sec` bounds its shutdown time-out."""
    given = layers.torchrun("--shutdown-timeout")
    text = given or layers.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")
    timeout_s = float(text) if text.isdigit() else DEFAULT_SHUTDOWN_TIMEOUT_S
    grace_s = layers.get("grace-sec")
    words = layers.torchrun_words()
    if layers.torchrun("--run-path") and "--run-path" not in words:
        words.append("--run-path")
    if grace_s is not None:
        timeout_s = min(timeout_s, max(1.0, float(int(grace_s - RESERVED_OF_GRACE_S))))
        words += ["--shutdown-timeout", str(int(timeout_s))] if given else []  # the last one wins
    is_redirected = any(layers.torchrun(name) not in ("", "0") for name in ("--redirects", "--tee"))
    return {
        "torchrun_options": tuple(words),
        "shutdown_timeout_s": timeout_s,
        "are_streams_torchruns": is_redirected or bool(layers.torchrun("--logs-specs")),
    }


def _aggregator(layers: Layers, *, is_multi_node: bool) -> dict[str, Any]:
    bind_host = layers.get("aggregator-bind-host")
    host = layers.get("aggregator-host")
    if host is None and is_multi_node:
        endpoint_host = "" if layers.find("master-addr") else host_of(layers.torchrun("--rdzv-endpoint"))
        host = endpoint_host or layers.get("master-addr")
    elif host is None and bind_host not in ("0.0.0.0", "::"):
        host = bind_host
    return {
        "aggregator_host": host or LOOPBACK,
        "is_port_explicit": layers.find("aggregator-port") is not None,
        "bind_host": bind_host or ("0.0.0.0" if is_multi_node else LOOPBACK),
    }


def _notices(layers: Layers, run_name: str) -> tuple[str, ...]:
    notices = []
    derived = [f"--{key} {each.text} ({each.source})" for key, each in layers.derived().items() if key != "run-name"]
    named = layers.derived().get("run-name")
    if named is not None and run_name == as_run_name(named.text):
        derived.append(f"--run-name {run_name} ({named.source})")
    if derived:
        notices.append(f"From {layers.job.scheduler}: {', '.join(derived)}")
    if layers.line.taken_behind_script:
        taken = " ".join(layers.line.taken_behind_script)
        notices.append(f"Taken from behind the script as options of ours: {taken} (behind -- all is the script's)")
    return tuple(notices)


def _check_tls(config: LaunchConfig) -> None:
    """The files themselves are looked at later."""
    may_serve = config.role != "peer" and not config.attach and not config.is_disabled
    if config.tls_key is not None and config.tls_cert is None:
        raise ConfigError("--tls-key needs --tls-cert, the certificate that it belongs to")
    if may_serve and config.tls_cert is not None and config.tls_key is None:
        raise ConfigError("--tls-cert needs --tls-key on the node that runs the aggregator")
    if may_serve and config.tls_ca is not None and config.tls_cert is None:
        raise ConfigError("--tls-ca needs --tls-cert and --tls-key on the node that runs the aggregator")
