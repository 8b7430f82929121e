"""Command lines and environments of torchrun and of the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from traceml_launch.command import daemon_argv, daemon_environment, finalize_argv, torchrun_argv, torchrun_environment
from traceml_launch.commandline.config import LaunchConfig, Target

TORCHRUN = "py -P -m torch.distributed.run"
ALONE = "--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id r"


def launch(kind: Any = "script", **more: Any) -> LaunchConfig:
    target = Target(kind=kind, name="train", args=("--lr", "1", "--", "--nnodes"))
    return LaunchConfig(target=target, run_name="r", logs_dir=Path("/l"), **more)


def argv(config: LaunchConfig, environ: dict[str, str] | None = None) -> str:
    words = torchrun_argv(config, python="py", worker_file="/w/worker.py", environ=environ or {}, run_name="r")
    return " ".join(words)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (launch(), "-m traceml_client.worker train --lr 1 -- --nnodes"),
        (launch("module"), "-m traceml_client.worker -m train --lr 1 -- --nnodes"),
        (launch("program"), "-m traceml_client.worker --exec train --lr 1 -- --nnodes"),
        (launch(torchrun_options=("--run-path",)), "--run-path /w/worker.py train --lr 1 -- --nnodes"),
        (launch(is_disabled=True), "train --lr 1 -- --nnodes"),
        (launch("module", is_disabled=True), "-m train --lr 1 -- --nnodes"),
        (launch("program", is_disabled=True), "--no-python train --lr 1 -- --nnodes"),
    ],
)
def test_the_target_comes_last_and_its_arguments_stay(config: LaunchConfig, expected: str) -> None:
    assert argv(config) == f"{TORCHRUN} --nnodes 1 --nproc-per-node 1 {ALONE} {expected}"


def test_a_module_of_our_name_in_the_working_directory_is_not_run_in_our_place() -> None:
    words = torchrun_argv(
        launch("module"), python="py", worker_file="/w/worker.py", environ={}, run_name="r", is_name_taken=True
    )
    assert " ".join(words).endswith(f"{ALONE} /w/worker.py -m train --lr 1 -- --nnodes")


@pytest.mark.parametrize(
    ("config", "environ", "expected"),
    [
        (launch(), {}, ALONE),
        (launch(nproc_per_node="gpu"), {}, ALONE),
        (launch(master_port=1234), {}, "--master-port 1234"),
        (launch(torchrun_options=("--standalone",)), {}, "--standalone"),
        (launch(torchrun_options=("--rdzv_backend=c10d",)), {}, "--rdzv_backend=c10d"),
        (launch(torchrun_options=("--rdzv-id", "x")), {}, "--rdzv-id x"),
        (launch(torchrun_options=("--role", "a")), {}, f"{ALONE} --role a"),
        (launch(), {"PET_RDZV_ENDPOINT": "h:1"}, ""),
        (launch(), {"PET_STANDALONE": "1"}, ""),
        (launch(), {"PET_MAX_RESTARTS": "1"}, ALONE),
        (launch(nnodes_min=2, nnodes_max=2, master_addr="h", master_port=29500, node_rank=1), {},
         "--node-rank 1 --master-addr h --master-port 29500"),
        (launch(nnodes_min=1, nnodes_max=3, is_dynamic_rendezvous=True, node_rank=None,
                torchrun_options=("--rdzv-backend", "c10d")), {}, "--rdzv-backend c10d"),
    ],
)  # fmt: skip
def test_where_workers_meet(config: LaunchConfig, environ: dict[str, str], expected: str) -> None:
    nnodes = "1:3" if config.nnodes_min != config.nnodes_max else str(config.nnodes_max)
    start = f"{TORCHRUN} --nnodes {nnodes} --nproc-per-node {config.nproc_per_node}"
    assert argv(config, environ).removesuffix(" -m traceml_client.worker train --lr 1 -- --nnodes") == (
        f"{start} {expected}".rstrip()
    )


def test_training_gets_the_launchers_environment_without_its_secret() -> None:
    given = {"PATH": "/bin", "TRACEML_TOKEN": "secret", "TRACEML_HANDOVER": "/outer", "TRACEML_RUN_NAME": "r"}
    result = torchrun_environment(launch(), environ=given, handover_path="/h", run_id="id")
    assert result == {"PATH": "/bin", "TRACEML_RUN_NAME": "r", "TRACEML_HANDOVER": "/h", "TRACEML_RUN_NONCE": "id"}
    assert given["TRACEML_TOKEN"] == "secret"


def test_plain_training_is_marked_but_finds_no_launcher() -> None:
    given = {"TRACEML_HANDOVER": "/outer"}
    result = torchrun_environment(launch(is_disabled=True), environ=given, handover_path="/h", run_id="id")
    assert result == {"TRACEML_RUN_NONCE": "id"}


def test_switches_about_the_script_are_not_read_again_for_our_worker() -> None:
    given = {"PET_MODULE": "1", "PET_NO_PYTHON": "1", "PET_RUN_PATH": "1", "PET_MAX_RESTARTS": "2"}
    result = torchrun_environment(launch(), environ=given, handover_path="/h", run_id="id")
    assert [result[name] for name in given] == ["0", "0", "0", "2"]


@pytest.mark.parametrize(
    ("given", "variable"),
    [({}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"), ({"PET_SHUTDOWN_TIMEOUT": "60"}, "PET_SHUTDOWN_TIMEOUT")],
)
def test_a_deadline_reaches_torchrun_by_its_variables(given: dict[str, str], variable: str) -> None:
    config = launch(grace_s=20.0, shutdown_timeout_s=13.0)
    result = torchrun_environment(config, environ=given, handover_path="/h", run_id="id")
    assert result[variable] == "13"


def test_the_offline_finalizer_gets_the_folder() -> None:
    offline = ["py", "-P", "-m", "traceml_daemon", "finalize", "--reason", "aggregator_died", "/l/r"]
    assert finalize_argv(python="py", run_dir="/l/r", reason="aggregator_died") == offline


def test_the_daemon_has_no_secret_on_its_command_line_and_in_its_environment() -> None:
    assert daemon_argv(python="py", config_fd=5, ready_fd=6) == [
        "py", "-P", "-m", "traceml_daemon", "supervise", "--config-fd", "5", "--ready-fd", "6",
    ]  # fmt: skip
    given = {"PATH": "/bin", "TRACEML_TOKEN": "secret", "TRACEML_HANDOVER": "/outer"}
    assert daemon_environment(environ=given, run_id="id") == {"PATH": "/bin", "TRACEML_RUN_NONCE": "id"}
