"""The daemon may fail in every way that a process can: training's outcome stays what it was, and it is said."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runner import free_ports
from tests.harness.half_written import hidden_files, leave_half_written
from tests.harness.processes import wait_until
from tests.harness.torchrun import TRACEML, RunningCommand, start
from tests.launch.launcher import child_pid, launch, run_folder, workers
from traceml_launch.aggregator.daemon_link import PING_S, SILENT_PINGS

RECORDS_THEN_WAITS = """
import time
for n in range(1, 50): recorder.record_step((0, time.monotonic_ns(), 1, 1, 1, 1, 1, 5))
print("ready", rank)
while not os.path.exists("go"): time.sleep(0.02)
sys.exit(5)
"""
"""The stub has no sender: all 49 steps are in the ring only."""


def daemon_pid(command: RunningCommand) -> int:
    return child_pid(command, "traceml_daemon supervise")


def let_go(cwd: Path) -> None:
    (cwd / "go").touch()


def test_a_daemon_that_dies_again_and_again_is_reported_offline_with_every_record(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(2, RECORDS_THEN_WAITS), aggregator_port=0) as command:
        command.wait_for(lambda: command.stdout().count(b"ready") == 2, "both have recorded")
        killed: set[int] = set()
        while b"aggregator is given up" not in command.stderr():
            living = {each.pid for each in command.find("traceml_daemon supervise")} - killed
            for pid in living:
                command.signal(pid, signal.SIGKILL)
            killed |= living
        let_go(tmp_path)
        finished = command.finish()
        assert command.marked() == []
    folder = run_folder(tmp_path)
    manifest = folder.manifest()
    assert finished.exit_code == 5
    assert (len(killed), finished.stderr.count(b"started again")) == (4, 3)
    assert (manifest["status"], manifest["training"]["exit_code"]) == ("failed", 5)
    assert (manifest["telemetry_status"], manifest["telemetry_reason"]) == ("degraded", "aggregator_died")
    assert manifest["aggregator_exit_code"] == -signal.SIGKILL
    assert b"[TraceML] Cause: nonzero_exit" in finished.stderr
    steps = {each["rank"]: each["attempts"][0]["steps"] for each in folder.summary()["ranks"]}
    assert steps == {0: 49, 1: 49}


def test_a_daemon_that_was_started_again_outlives_its_launcher_and_ends_the_run(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, RECORDS_THEN_WAITS), aggregator_port=0) as command:
        command.wait_for_output("ready 0")
        first = daemon_pid(command)
        command.signal(first, signal.SIGKILL)
        command.wait_for(
            lambda: run_folder(tmp_path).manifest()["lease"]["holder"]["pid"] not in (first, command.process.pid),
            "the second one holds the run",
        )
        command.signal(command.process.pid, signal.SIGKILL)
        wait_until(lambda: run_folder(tmp_path).manifest()["status"] == "failed", "it is finalized", within_s=30.0)
        wait_until(lambda: command.marked() == [], "nothing is left", within_s=20.0)
    assert run_folder(tmp_path).manifest()["telemetry_status"] == "degraded"


def test_a_dead_rank_is_handed_in_while_the_run_goes_on(tmp_path: Path) -> None:
    code = RECORDS_THEN_WAITS.replace("sys.exit(5)", "os.kill(os.getpid(), 9)")
    with launch(tmp_path, *workers(1, code)) as command:
        command.wait_for_output("ready 0")
        let_go(tmp_path)
        assert command.finish().exit_code == 1
    folder = run_folder(tmp_path)
    manifest, summary = folder.manifest(), folder.summary()
    (missing,) = manifest["telemetry"]["ranks_missing"]
    assert (missing["rank"], missing["why"], missing["last_step"]) == (0, "killed by SIGKILL", 49)
    assert manifest["telemetry"]["records"]["salvaged"] == 49
    assert manifest["aggregator_exit_code"] == 0
    assert summary["ranks"][0]["attempts"][0]["steps"] == 49


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_launcher_without_a_daemon_removes_what_a_killed_writer_left(tmp_path: Path, taken_port: int) -> None:
    options = {"aggregator_port": taken_port, "is_port_explicit": True}
    with launch(tmp_path, *workers(1, RECORDS_THEN_WAITS), **options) as command:
        command.wait_for_output("ready 0")
        leave_half_written(run_folder(tmp_path).path / "manifest.json")
        let_go(tmp_path)
        assert command.finish().exit_code == 5
    assert hidden_files(run_folder(tmp_path).path) == []


def test_training_goes_on_without_a_daemon(tmp_path: Path, taken_port: int) -> None:
    options = {"aggregator_port": taken_port, "is_port_explicit": True}
    with launch(tmp_path, *workers(1, "print('trained', rank)"), **options) as command:
        finished = command.finish()
    manifest = run_folder(tmp_path).manifest()
    assert (finished.exit_code, finished.stdout) == (0, b"agent started\ntrained 0\n")
    assert b"training runs without telemetry" in finished.stderr
    assert (manifest["status"], manifest["telemetry_status"]) == ("completed", "unavailable")
    assert manifest["telemetry_reason"] == "aggregator_unreachable"
    assert manifest["lease"] is None


def test_or_is_refused_where_telemetry_is_required(tmp_path: Path, taken_port: int) -> None:
    options = {"aggregator_port": taken_port, "is_port_explicit": True, "on_missing_aggregator": "raise"}
    with launch(tmp_path, *workers(1, "print('trained')"), **options) as command:
        finished = command.finish()
    assert (finished.exit_code, finished.stdout) == (1, b"")
    assert run_folder(tmp_path).manifest()["telemetry_reason"] == "aggregator_unreachable"


def test_a_free_port_is_taken_where_any_will_do(tmp_path: Path, taken_port: int) -> None:
    with launch(tmp_path, *workers(1, "pass"), aggregator_port=taken_port) as command:
        assert command.finish().exit_code == 0
    assert run_folder(tmp_path).manifest()["aggregator_exit_code"] == 0


def test_a_training_that_is_over_before_the_daemon_is_ready_has_its_report(tmp_path: Path) -> None:
    with launch(tmp_path, "sh", "-c", "exit 3") as command:
        assert command.finish().exit_code == 3
    manifest = run_folder(tmp_path).manifest()
    assert (manifest["status"], manifest["aggregator_exit_code"]) == ("failed", 0)
    assert manifest["telemetry_status"] == "degraded"
    assert run_folder(tmp_path).summary()["training"]["exit_code"] == 3


def test_required_telemetry_is_there(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, "pass"), on_missing_aggregator="raise") as command:
        finished = command.finish()
    assert (finished.exit_code, finished.stdout) == (0, b"agent started\n")


def test_a_peer_trains_without_the_owners_daemon(tmp_path: Path, taken_port: int) -> None:
    options = {"nnodes_min": 2, "nnodes_max": 2, "node_rank": 1, "aggregator_port": taken_port}
    with launch(tmp_path, *workers(1, "print('trained', rank)"), **options) as command:
        finished = command.finish()
    folder = run_folder(tmp_path)
    assert finished.exit_code == 0
    assert b"Telemetry:" not in finished.stderr
    assert folder.rank_stream(0, "stdout", node=1) == b"trained 0\n"
    assert folder.node(1)["exit_code"] == 0
    assert not (folder.path / "manifest.json").exists()


def test_somebody_elses_daemon_that_is_gone_for_good_is_not_waited_for(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    serve = [TRACEML, "serve", f"--logs-dir={tmp_path / 'logs'}", f"--aggregator-port={port}"]
    token = {"TRACEML_TOKEN": "of-the-host"}
    options = {"attach": True, "aggregator_port": port, "token": token["TRACEML_TOKEN"]}
    with (
        start(serve, cwd=tmp_path, environ=token, name="serve") as daemon,
        launch(tmp_path, *workers(1, RECORDS_THEN_WAITS), **options) as command,
    ):
        command.wait_for(lambda: run_folder(tmp_path).path.exists(), "the daemon knows the run")
        command.wait_for_output("ready 0")
        daemon.signal(daemon.process.pid, signal.SIGKILL)
        let_go(tmp_path)
        finished = command.finish(within_s=SILENT_PINGS * PING_S + 20.0)
    assert finished.exit_code == 5
    assert b"Telemetry: unavailable (aggregator_unreachable)" in finished.stderr


def test_somebody_elses_daemon_reports_and_serves_on(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    serve = [TRACEML, "serve", f"--logs-dir={tmp_path / 'logs'}", f"--aggregator-port={port}"]
    token = {"TRACEML_TOKEN": "of-the-host"}
    options = {"attach": True, "aggregator_port": port, "token": token["TRACEML_TOKEN"]}
    with start(serve, cwd=tmp_path, environ=token, name="serve") as daemon:
        let_go(tmp_path)
        with launch(tmp_path, *workers(2, RECORDS_THEN_WAITS), **options) as command:
            assert command.finish().exit_code == 5
        assert daemon.is_alive()
    manifest, summary = run_folder(tmp_path).manifest(), run_folder(tmp_path).summary()
    assert (manifest["status"], manifest["training"]["exit_code"]) == ("failed", 5)
    assert [rank["attempts"][0]["steps"] for rank in summary["ranks"]] == [49, 49]
