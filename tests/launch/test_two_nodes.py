"""Two launchers on one machine: one run, one report; files where they belong, each node's end told to the owner."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.harness.torchrun import RunFolder, RunningCommand
from tests.launch.launcher import RUN_NAME, child_pid, launch, workers

WAITS = """
import time
print("ready", rank)
while not os.path.exists("go"): time.sleep(0.02)
"""
FAILS_ON_RANK_1 = WAITS + "print('oh no', file=sys.stderr); sys.exit(3 * rank)"


class Pair:
    """Starts the two launchers of one run, each in a folder of its own."""

    def __init__(self, tmp_path: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._tmp_path = tmp_path
        self.logs = {node: tmp_path / f"logs_{node}" for node in (0, 1)}

    def start(self, node: int, code: str, **options: Any) -> RunningCommand:
        cwd = self._tmp_path / f"cwd_{len(list(self._tmp_path.glob('cwd_*')))}"
        cwd.mkdir()
        (cwd / "go").symlink_to(self._tmp_path / "go")
        settings = {"nnodes_min": 2, "nnodes_max": 2, "node_rank": node, "aggregator_port": self._port}
        settings = {**settings, "logs_dir": str(self.logs[node]), **options}
        return launch(cwd, *workers(1, code, "--node", str(node), "--num-nodes", "2"), **settings)

    def let_go(self) -> None:
        (self._tmp_path / "go").touch()

    def folder(self, node: int) -> RunFolder:
        return RunFolder(self.logs[node] / RUN_NAME)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def both_ready(owner: RunningCommand, peer: RunningCommand) -> None:
    for node, command in enumerate((owner, peer)):
        command.wait_for_output(f"ready {node}")


def test_the_owner_sees_both_nodes_and_gets_the_other_ones_files(pair: Pair) -> None:
    with pair.start(1, FAILS_ON_RANK_1) as peer, pair.start(0, FAILS_ON_RANK_1) as owner:
        both_ready(owner, peer)
        pair.let_go()
        ends = owner.finish(), peer.finish()
    assert [each.exit_code for each in ends] == [0, 3]
    manifest = pair.folder(0).manifest()
    assert manifest["status"] == "failed"
    assert [each["exit_code"] for each in manifest["training"]["nodes"]] == [0, 3]
    assert pair.folder(0).rank_stream(1, "stderr", node=1) == b"oh no\n"
    assert pair.folder(0).node(1)["exit_code"] == 3
    assert pair.folder(1).rank_stream(1, "stdout", node=1) == b"ready 1\n"
    assert not (pair.folder(1).path / "manifest.json").exists()
    assert manifest["telemetry"]["authenticated"] is False
    assert list(pair.logs[0].rglob("token")) == []
    assert b"Telemetry:" in ends[0].stderr
    assert b"Telemetry:" not in ends[1].stderr


def test_a_shared_folder_is_written_by_each_node_in_its_own_part(pair: Pair) -> None:
    pair.logs[1] = pair.logs[0]
    with pair.start(0, WAITS) as owner, pair.start(1, WAITS) as peer:
        both_ready(owner, peer)
        pair.let_go()
        assert [owner.finish().exit_code, peer.finish().exit_code] == [0, 0]
    folder = pair.folder(0)
    manifest = folder.manifest()
    assert manifest["status"] == "completed"
    assert manifest["telemetry"]["authenticated"] is True, "both have read the token in the shared folder"
    assert list(folder.path.rglob("token")) == []
    assert [folder.node(node)["node_index"] for node in (0, 1)] == [0, 1]
    assert folder.rank_stream(1, "stdout", node=1) == b"ready 1\n"


def test_without_node_ranks_the_first_on_the_aggregators_host_owns_the_run(pair: Pair) -> None:
    pair.logs[1] = pair.logs[0]
    options = {"node_rank": None, "is_dynamic_rendezvous": True}
    with pair.start(0, WAITS, **options) as one, pair.start(1, WAITS, **options) as other:
        both_ready(one, other)
        pair.let_go()
        ends = one.finish(), other.finish()
    assert [each.exit_code for each in ends] == [0, 0]
    assert sorted(b"Telemetry:" in each.stderr for each in ends) == [False, True]
    manifest = pair.folder(0).manifest()
    assert (manifest["status"], len(manifest["training"]["nodes"])) == ("completed", 2)
    assert manifest["telemetry"]["authenticated"] is True
    reports = [pair.folder(0).report_of(each.process.pid) for each in (one, other)]
    assert sorted(report["node_index"] for report in reports if report is not None) == [0, 1]


def test_nodes_keep_their_numbers_when_the_daemon_is_started_again(pair: Pair) -> None:
    pair.logs[1] = pair.logs[0]
    options = {"node_rank": None, "is_dynamic_rendezvous": True}
    with pair.start(0, WAITS, **options) as one, pair.start(1, WAITS, **options) as other:
        both_ready(one, other)
        owner = one if one.find("traceml_daemon supervise") else other
        owner.signal(child_pid(owner, "traceml_daemon supervise"), signal.SIGKILL)
        owner.wait_for(lambda: b"started again (1 of 3)" in owner.stderr(), "it is said")
        pair.let_go()
        assert [one.finish().exit_code, other.finish().exit_code] == [0, 0]
    manifest = pair.folder(0).manifest()
    assert (manifest["status"], manifest["telemetry"]["authenticated"]) == ("completed", True)
    assert [each["exit_code"] for each in manifest["training"]["nodes"]] == [0, 0]
    ranks = pair.folder(0).summary()["ranks"]
    assert [(each["rank"], len(each["attempts"])) for each in ranks] == [(0, 1), (1, 1)]
    assert len({each["attempts"][0]["node_rank"] for each in ranks}) == 2


def test_a_node_that_cannot_know_the_token_is_told_of(pair: Pair) -> None:
    with pair.start(0, WAITS) as owner, pair.start(1, WAITS) as peer:
        both_ready(owner, peer)
        owner.wait_for(lambda: b"node 1" in owner.stderr() and b"not authenticated" in owner.stderr(), "it is said")
        pair.let_go()
        assert [owner.finish().exit_code, peer.finish().exit_code] == [0, 0]
    assert owner.stderr().count(b"not authenticated") == 1


def test_a_token_is_found_also_where_the_runs_name_got_a_suffix(pair: Pair) -> None:
    pair.logs[1] = pair.logs[0]
    (pair.logs[0] / RUN_NAME).mkdir(parents=True)
    (pair.logs[0] / RUN_NAME / "taken").touch()
    with pair.start(0, WAITS) as owner, pair.start(1, WAITS) as peer:
        both_ready(owner, peer)
        pair.let_go()
        assert [owner.finish().exit_code, peer.finish().exit_code] == [0, 0]
    manifest = RunFolder(pair.logs[0] / f"{RUN_NAME}-2").manifest()
    assert (manifest["status"], manifest["telemetry"]["authenticated"]) == ("completed", True)


def test_the_owner_says_that_another_nodes_torchrun_was_killed_while_its_own_goes_on(pair: Pair) -> None:
    with pair.start(0, WAITS) as owner, pair.start(1, WAITS) as peer:
        both_ready(owner, peer)
        peer.signal(child_pid(peer, "stub_torchrun"), signal.SIGKILL)
        owner.wait_for(lambda: b"its torchrun was ended by SIGKILL" in owner.stderr(), "it is said", within_s=10.0)
        assert owner.is_alive()
        pair.let_go()
        ends = owner.finish(), peer.finish()
    assert [each.exit_code for each in ends] == [0, 137]
    assert pair.folder(0).manifest()["status"] == "failed"


def test_the_owner_says_that_another_nodes_launcher_is_out_of_reach(pair: Pair) -> None:
    with pair.start(0, WAITS) as owner, pair.start(1, WAITS) as peer:
        both_ready(owner, peer)
        peer.signal(peer.process.pid, signal.SIGKILL)
        owner.wait_for(lambda: b"out of reach" in owner.stderr(), "it is said", within_s=15.0)
        pair.let_go()
        assert owner.finish().exit_code == 0
    nodes = {each["node_rank"]: each for each in pair.folder(0).manifest()["training"]["nodes"]}
    assert nodes[0]["exit_code"] == 0
    assert nodes[1]["exit_code"] is None
    assert nodes[1]["why"]


def test_a_node_rank_that_is_held_is_a_usage_error(pair: Pair) -> None:
    with pair.start(0, WAITS) as owner, pair.start(1, WAITS) as peer:
        both_ready(owner, peer)
        with pair.start(1, WAITS, logs_dir=str(pair.logs[1]) + "_other") as late:
            finished = late.finish()
        assert (finished.exit_code, finished.stdout) == (2, b"")
        assert b"--node-rank 1" in finished.stderr
        pair.let_go()
        assert [owner.finish().exit_code, peer.finish().exit_code] == [0, 0]


def test_a_node_with_another_token_trains_on_without_telemetry(pair: Pair) -> None:
    with pair.start(0, WAITS, token="one") as owner, pair.start(1, WAITS, token="another") as peer:
        both_ready(owner, peer)
        pair.let_go()
        ends = owner.finish(), peer.finish()
    assert [each.exit_code for each in ends] == [0, 0]
    assert b"bad_token" in ends[1].stderr
    assert pair.folder(1).node(1)["exit_code"] == 0
