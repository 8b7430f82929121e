"""Pure: what a scheduler says about this job (Slurm, Kubeflow's PET_*), as values for our options with their source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from traceml_client.protocol.errors import ConfigError

_ONE_EACH = re.compile(r"1(\(x\d+\))?(,1(\(x\d+\))?)*")
"""Slurm's tasks per node, such as `1(x4)`, where each node has one."""
_POD_ORDINAL = re.compile(r"(-(master|worker|node|launcher|replica))?(-\d+)+$")
"""What Kubeflow puts behind the job's name to make a pod's: `job-master-0`, `job-node-0-0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """Option keys -> (source, value). Empty outside a scheduler."""

    scheduler: str = ""
    values: dict[str, tuple[str, str]] = field(default_factory=dict)


def read(environ: Mapping[str, str]) -> JobEnvironment:
    """PET_* variables first: they speak to torchrun itself. Slurm's only where it starts one task per node.

    Raises:
        ConfigError: a node list that cannot be read; the text names the variable.
    """
    slurm = _slurm(environ)
    kubeflow = _kubeflow(environ)
    scheduler = " and ".join(name for name, values in (("PET_*", kubeflow), ("Slurm", slurm)) if values)
    return JobEnvironment(scheduler=scheduler, values={**slurm, **kubeflow})


def first_host(node_list: str) -> str:
    """The first name of a Slurm node list: `gpu[07-09,12],cpu3` -> `gpu07`.

    Raises:
        ValueError: brackets do not match, or it is empty.
    """
    depth = 0
    first = node_list
    for position, character in enumerate(node_list):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            first = node_list[:position]
            break
    host = re.sub(r"\[(\d+)[^\]\[]*\]", r"\1", first).strip()
    if not host or "[" in host or "]" in host:
        raise ValueError(node_list)
    return host


def host_of(endpoint: str) -> str:
    """The host of HOST:PORT: `[::1]:29400` -> `::1`; a bare host stays."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    return endpoint.rpartition(":")[0] if endpoint.count(":") == 1 else endpoint


def _slurm(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    if not environ.get("SLURM_JOB_ID") or not _has_one_task_per_node(environ):
        return {}
    values = {"run-name": ("SLURM_JOB_ID", _slurm_run_name(environ))}
    _take(values, "nnodes", environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    _take(values, "node-rank", environ, "SLURM_NODEID")
    for variable in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(variable):
            try:
                values["master-addr"] = (variable, first_host(environ[variable]))
            except ValueError:
                raise ConfigError(f"{variable}={environ[variable]!r} is not a node list; give --master-addr") from None
            break
    return values


def _has_one_task_per_node(environ: Mapping[str, str]) -> bool:
    """Slurm's own default is one, so silence counts as one."""
    for variable in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if environ.get(variable):
            return _ONE_EACH.fullmatch(environ[variable].strip()) is not None
    num_nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    return environ.get("SLURM_NTASKS", num_nodes) == num_nodes


def _slurm_run_name(environ: Mapping[str, str]) -> str:
    """Equal on all nodes also after a requeue and for a second step of the job, without asking each other."""
    name = f"slurm-{environ['SLURM_JOB_ID']}"
    if environ.get("SLURM_ARRAY_JOB_ID") and environ.get("SLURM_ARRAY_TASK_ID"):
        name = f"slurm-{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    if environ.get("SLURM_STEP_ID", "0") not in ("", "0"):
        name += f"-step{environ['SLURM_STEP_ID']}"
    if environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0"):
        name += f"-restart{environ['SLURM_RESTART_COUNT']}"
    return name


def _kubeflow(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    values: dict[str, tuple[str, str]] = {}
    for key in ("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port"):
        _take(values, key, environ, "PET_" + key.replace("-", "_").upper())
    for variable in ("PET_RDZV_ENDPOINT", "PET_MASTER_ADDR"):
        name = _job_of_host(environ.get(variable, ""))
        if name:
            values["run-name"] = (variable, name)
    if environ.get("PET_RDZV_ID", "none") not in ("", "none"):
        values["run-name"] = ("PET_RDZV_ID", environ["PET_RDZV_ID"])
    return values


def _job_of_host(endpoint: str) -> str:
    """The job's name in the name of its first pod; empty for an address, `localhost` or nothing."""
    label = host_of(endpoint).split(".", 1)[0]
    is_name = bool(label) and ":" not in label and not label.isdigit() and label != "localhost"
    return _POD_ORDINAL.sub("", label) if is_name else ""


def _take(values: dict[str, tuple[str, str]], key: str, environ: Mapping[str, str], *variables: str) -> None:
    """The first of the variables that says something."""
    for variable in variables:
        if environ.get(variable):
            values[key] = (variable, environ[variable])
            return
