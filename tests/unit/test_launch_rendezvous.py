"""Counts, ranks, addresses and names of one node and of several, given or derived from the job."""

from __future__ import annotations

import pytest

from tests.harness.launches import launch


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--nproc-per-node 4", ("4", 4)),
        ("--nproc-per-node cpu", ("cpu", 6)),
        ("--nproc-per-node gpu", ("gpu", 0)),
        ("--nproc-per-node auto", ("auto", 0)),
    ],
)
def test_local_ranks_are_counted_where_that_is_possible(words: str, expected: tuple[str, int]) -> None:
    config = launch(f"{words} train.py")
    assert (config.nproc_per_node, config.num_local_ranks) == expected


def test_static_nodes_have_ranks_and_the_first_owns_the_run() -> None:
    owner = launch("--nnodes 2 --master-addr n0 --run-name r train.py")
    assert (owner.nnodes_min, owner.nnodes_max, owner.node_rank, owner.role) == (2, 2, 0, "owner")
    assert (owner.master_port, owner.bind_host, owner.aggregator_host) == (29500, "0.0.0.0", "n0")
    assert owner.is_port_required
    peer = launch("--nnodes 2 --node-rank 1 --master-addr n0 --run-name r train.py")
    assert (peer.node_rank, peer.role) == (1, "peer")


def test_nodes_that_meet_dynamically_contend_unless_a_rank_is_given() -> None:
    config = launch("--nnodes 1:3 --rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-id job train.py")
    assert (config.node_rank, config.role, config.is_dynamic_rendezvous) == (None, "contender", True)
    assert (config.nnodes_min, config.nnodes_max, config.aggregator_host, config.master_port) == (1, 3, "h", None)
    given = launch("--nnodes 1:3 --rdzv-backend c10d --rdzv-endpoint h:1 --node-rank 2 --rdzv-id job train.py")
    assert (given.node_rank, given.role) == (2, "peer")


@pytest.mark.parametrize(
    ("endpoint", "host"), [("h:29400", "h"), ("h", "h"), ("[::1]:29400", "::1"), ("10.0.0.1:0", "10.0.0.1")]
)
def test_the_host_of_the_rendezvous_gets_telemetry(endpoint: str, host: str) -> None:
    config = launch(f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {endpoint} --run-name r train.py")
    assert config.aggregator_host == host


def test_the_master_address_goes_before_the_rendezvous_and_a_given_host_before_both() -> None:
    words = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 --master-addr m --run-name r train.py"
    assert launch(words).aggregator_host == "m"
    assert launch(f"--aggregator-host a {words}").aggregator_host == "a"


@pytest.mark.parametrize(
    ("words", "host"),
    [
        ("--master-addr m", "127.0.0.1"),
        ("--aggregator-bind-host 0.0.0.0", "127.0.0.1"),
        ("--aggregator-bind-host 10.0.0.9", "10.0.0.9"),
    ],
)
def test_one_node_reaches_its_daemon_where_it_listens(words: str, host: str) -> None:
    assert launch(f"{words} train.py").aggregator_host == host


@pytest.mark.parametrize(
    ("words", "name", "is_explicit"),
    [
        ("--run-name r --rdzv-id i", "r", True),
        ("--rdzv-id i", "i", False),
        ("--rdzv-id a/b..c", "a-b.c", False),
    ],
)
def test_the_name_of_a_run_on_several_nodes(words: str, name: str, is_explicit: bool) -> None:
    config = launch(f"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 {words} train.py")
    assert (config.run_name, config.is_run_name_explicit) == (name, is_explicit)


def test_a_job_of_slurm_is_derived_in_one_sentence_and_a_flag_still_wins() -> None:
    job = {"SLURM_JOB_ID": "77", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "n[4-5]"}
    config = launch("train.py", job)
    assert (config.nnodes_max, config.node_rank, config.master_addr, config.run_name) == (2, 1, "n4", "slurm-77")
    assert not config.is_run_name_explicit
    (notice,) = config.notices
    for part in (
        "From Slurm:",
        "--nnodes 2",
        "--node-rank 1",
        "--master-addr n4",
        "--run-name slurm-77",
        "SLURM_NODEID",
    ):
        assert part in notice
    named = launch("--run-name mine --master-addr other train.py", job)
    assert (named.run_name, named.is_run_name_explicit, named.master_addr) == ("mine", True, "other")
    assert "--run-name" not in named.notices[0]


def test_fewer_nodes_than_the_job_has_leave_its_ranks_and_addresses_alone() -> None:
    job = {"SLURM_JOB_ID": "77", "SLURM_NNODES": "4", "SLURM_NODEID": "3", "SLURM_JOB_NODELIST": "n[0-3]"}
    config = launch("--nnodes 1 train.py", job)
    assert (config.nnodes_max, config.node_rank, config.master_addr) == (1, 0, "127.0.0.1")
