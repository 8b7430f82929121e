"""Pure: a launch and the names of sockets and descriptors in; command lines and environments of the children out."""

from __future__ import annotations

from collections.abc import Mapping

from traceml_client.protocol import environ as names
from traceml_launch.commandline.config import LaunchConfig, Target

_PYTHON_MODULE = ("-P", "-m")
"""Without the working directory on `sys.path`: a user's own `queue.py` there is for the script, not for us."""
TORCHRUN_MODULE = "torch.distributed.run"
WORKER_MODULE = "traceml_client.worker"
DAEMON_MODULE = "traceml_daemon"

RENDEZVOUS_OPTIONS = ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--standalone", "--master-port")
"""Any of these, as an option or as PET_*, says how the workers meet; then we say nothing."""
_TARGET_SWITCHES = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH")
"""torchrun would read them for our worker; they were meant for the user's script, and are in `Target` already."""
_SHUTDOWN_TIMEOUTS = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "PET_SHUTDOWN_TIMEOUT")


def torchrun_argv(
    config: LaunchConfig,
    *,
    python: str,
    worker_file: str,
    environ: Mapping[str, str],
    run_name: str,
    is_name_taken: bool = False,
) -> list[str]:
    """The command that trains.

    Args:
        python: the interpreter that runs us, so that torchrun is the one beside us.
        worker_file: path of traceml_client/worker.py; used where torchrun takes nothing but a path (`--run-path`).
        run_name: the name that was reserved, for a rendezvous of one node.
        is_name_taken: the working directory, where Python looks for a module first, has a `traceml_client` of its own.
    """
    argv = [python, *_PYTHON_MODULE, TORCHRUN_MODULE, *_placement(config, environ, run_name), *config.torchrun_options]
    if config.is_disabled:
        return [*argv, *_plain_target(config.target)]
    if "--run-path" in config.torchrun_options or is_name_taken:
        return [*argv, worker_file, *_worker_target(config.target)]
    return [*argv, "-m", WORKER_MODULE, *_worker_target(config.target)]


def torchrun_environment(
    config: LaunchConfig, *, environ: Mapping[str, str], handover_path: str, run_id: str
) -> dict[str, str]:
    """The launcher's own environment without the token, with the way to the launcher and the mark of the run."""
    result = {name: value for name, value in environ.items() if name not in (names.TOKEN, names.HANDOVER)}
    result[names.RUN_NONCE] = run_id
    if not config.is_disabled:
        result[names.HANDOVER] = handover_path
    for name in _TARGET_SWITCHES:
        if name in result:
            result[name] = "0"
    if config.grace_s is not None:
        for name in _SHUTDOWN_TIMEOUTS:
            result[name] = str(int(config.shutdown_timeout_s))
    return result


def daemon_argv(*, python: str, config_fd: int, ready_fd: int) -> list[str]:
    """The owner's daemon; what it shall do comes through `config_fd`, so that no secret stands here."""
    fds = ("--config-fd", str(config_fd), "--ready-fd", str(ready_fd))
    return [python, *_PYTHON_MODULE, DAEMON_MODULE, "supervise", *fds]


def finalize_argv(*, python: str, run_dir: str, reason: str) -> list[str]:
    """What makes the reports of a run whose daemon is gone; `reason` is the telemetry reason that the reports give."""
    return [python, *_PYTHON_MODULE, DAEMON_MODULE, "finalize", "--reason", reason, run_dir]


def daemon_environment(*, environ: Mapping[str, str], run_id: str) -> dict[str, str]:
    """No token, no way to a launcher; the mark of the run."""
    result = {name: value for name, value in environ.items() if name not in (names.TOKEN, names.HANDOVER)}
    result[names.RUN_NONCE] = run_id
    return result


def _placement(config: LaunchConfig, environ: Mapping[str, str], run_name: str) -> list[str]:
    """Node and worker counts, and where workers meet, as options of torchrun."""
    options = ["--nnodes", _nnodes(config), "--nproc-per-node", config.nproc_per_node]
    if config.is_multi_node and not config.is_dynamic_rendezvous:
        options += ["--node-rank", str(config.node_rank or 0), "--master-addr", config.master_addr]
    if config.master_port is not None:
        options += ["--master-port", str(config.master_port)]
    elif not config.is_multi_node and not _is_rendezvous_chosen(config, environ):
        # What newer torchruns do by themselves; older ones would all take port 29500 and collide.
        options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", run_name]
    return options


def _nnodes(config: LaunchConfig) -> str:
    if config.nnodes_min == config.nnodes_max:
        return str(config.nnodes_max)
    return f"{config.nnodes_min}:{config.nnodes_max}"


def _is_rendezvous_chosen(config: LaunchConfig, environ: Mapping[str, str]) -> bool:
    given = {option.split("=", 1)[0].replace("_", "-") for option in config.torchrun_options}
    variables = {"PET_" + option.lstrip("-").replace("-", "_").upper() for option in RENDEZVOUS_OPTIONS}
    return not given.isdisjoint(RENDEZVOUS_OPTIONS) or any(environ.get(name) for name in variables)


def _worker_target(target: Target) -> list[str]:
    switch = {"script": [], "module": ["-m"], "program": ["--exec"]}[target.kind]
    return [*switch, target.name, *target.args]


def _plain_target(target: Target) -> list[str]:
    switch = {"script": [], "module": ["-m"], "program": ["--no-python"]}[target.kind]
    return [*switch, target.name, *target.args]
