"""What is read from a scheduler's variables."""

from __future__ import annotations

import pytest

from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline.job_environment import first_host, read

STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_NNODES": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_JOB_NODELIST": "gpu[01-04]",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


def values(environ: dict[str, str]) -> dict[str, str]:
    return {key: value for key, (_, value) in read(environ).values.items()}


@pytest.mark.parametrize(
    ("node_list", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-4]", "n1"),
        ("gpu[07-09,12],cpu3", "gpu07"),
        ("a[3,1]", "a3"),
        ("rack[1-2]-node[05-08]", "rack1-node05"),
        ("n[12]", "n12"),
        ("node-a.cluster", "node-a.cluster"),
    ],
)
def test_the_first_host_of_a_node_list(node_list: str, host: str) -> None:
    assert first_host(node_list) == host


@pytest.mark.parametrize("node_list", ["", "[", "n[1-", "n[]", "n]1", ","])
def test_a_node_list_that_cannot_be_read(node_list: str) -> None:
    with pytest.raises(ValueError):
        first_host(node_list)


def test_outside_a_job_nothing_is_derived() -> None:
    assert read({}).values == {}
    assert read({"SLURM_NNODES": "2", "PATH": "/bin"}).values == {}


def test_the_step_goes_before_the_whole_job() -> None:
    job = read(STEP)
    assert job.scheduler == "Slurm"
    assert job.values == {
        "run-name": ("SLURM_JOB_ID", "slurm-77"),
        "nnodes": ("SLURM_STEP_NUM_NODES", "2"),
        "node-rank": ("SLURM_NODEID", "1"),
        "master-addr": ("SLURM_STEP_NODELIST", "gpu03"),
    }


@pytest.mark.parametrize(
    ("change", "is_derived"),
    [
        ({}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,2"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x1),1"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_NTASKS_PER_NODE": "1"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_NTASKS_PER_NODE": "8"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_NTASKS": "2"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_NTASKS": "8"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": ""}, True),
    ],
)
def test_slurm_counts_only_with_one_task_per_node(change: dict[str, str], is_derived: bool) -> None:
    assert ("nnodes" in values({**STEP, **change})) is is_derived


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, "slurm-77"),
        ({"SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "0"}, "slurm-77"),
        ({"SLURM_RESTART_COUNT": "2"}, "slurm-77-restart2"),
        ({"SLURM_STEP_ID": "3"}, "slurm-77-step3"),
        ({"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "5"}, "slurm-70_5"),
    ],
)
def test_a_name_that_all_nodes_find_alone(change: dict[str, str], name: str) -> None:
    assert values({**STEP, **change})["run-name"] == name


def test_a_node_list_that_cannot_be_read_names_its_variable() -> None:
    with pytest.raises(ConfigError, match=r"^SLURM_STEP_NODELIST='n\[1-' is not a node list"):
        read({**STEP, "SLURM_STEP_NODELIST": "n[1-"})


def test_kubeflow_speaks_to_torchrun_and_goes_first() -> None:
    pet = {"PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "job-master-0", "PET_MASTER_PORT": "23456"}
    job = read({**STEP, **pet, "PET_NPROC_PER_NODE": "4"})
    assert job.scheduler == "PET_* and Slurm"
    assert {key: value for key, (_, value) in job.values.items()} == {
        "nnodes": "3",
        "node-rank": "2",
        "master-addr": "job-master-0",
        "master-port": "23456",
        "nproc-per-node": "4",
        "run-name": "job",
    }


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"PET_RDZV_ID": "group"}, "group"),
        ({"PET_RDZV_ID": "none"}, None),
        ({"PET_MASTER_ADDR": "mnist-master-0"}, "mnist"),
        ({"PET_MASTER_ADDR": "mnist-node-0-0.mnist.ns.svc"}, "mnist"),
        ({"PET_RDZV_ENDPOINT": "elastic-worker-0:23456"}, "elastic"),
        ({"PET_MASTER_ADDR": "10.0.0.7"}, None),
        ({"PET_RDZV_ENDPOINT": "[::1]:29400"}, None),
        ({"PET_MASTER_ADDR": "localhost"}, None),
        ({"PET_RDZV_ID": "group", "PET_MASTER_ADDR": "mnist-master-0"}, "group"),
    ],
)
def test_the_name_of_a_kubernetes_job(environ: dict[str, str], name: str | None) -> None:
    assert values(environ).get("run-name") == name
