"""Healthy jobs whose telemetry is hurt, or whose ranks are silent: training's outcome stands, and a report is made."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.catalogue import OWN_SCRIPTS
from tests.harness.processes import wait_until
from tests.harness.torchrun import FinishedCommand, RunFolder, RunningCommand, start_run

SCRIPTS = Path(__file__).parent / "scripts"
LONG_ENOUGH = ["--steps", "80", "--step-seconds", "0.1"]

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(120)]


def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "logs" / "run")


def lag_s(done: FinishedCommand, run_folder: RunFolder) -> float:
    """Seconds from torchrun's exit to the command's."""
    ended_ns: int = run_folder.node()["ended_ns"]
    return (done.ended_ns - ended_ns) / 1e9


def daemon_pid(run: RunningCommand) -> int:
    return run.find("traceml_daemon")[0].pid


def steps_of(run_folder: RunFolder) -> dict[int, list[int]]:
    ranks = run_folder.summary()["ranks"]
    return {entry["rank"]: [attempt["steps"] for attempt in entry["attempts"]] for entry in ranks}


def test_healthy_run_is_complete_and_says_so(tmp_path: Path) -> None:
    with start_run(["--nproc-per-node=2", OWN_SCRIPTS / "healthy.py", "--html-report"], cwd=tmp_path) as run:
        done = run.finish()
        assert run.marked() == []
    manifest, summary = folder(tmp_path).manifest(), folder(tmp_path).summary()
    assert (done.exit_code, manifest["status"], manifest["telemetry_status"]) == (0, "completed", "complete")
    assert manifest["aggregator_exit_code"] == 0
    assert steps_of(folder(tmp_path)) == {0: [30], 1: [30]}
    phases = summary["step_time"]["phases"]
    assert all(phases[name]["p50_ms"] > 0 for name in ("forward", "backward", "optimizer", "step"))
    assert [finding for finding in summary["findings"] if finding["severity"] != "info"] == []
    for path in manifest["artifacts"].values():
        assert (folder(tmp_path).path / path).exists()
    assert "TRAINING COMPLETED" in (folder(tmp_path).path / manifest["artifacts"]["final_summary_html"]).read_text()
    last_lines = [line for line in done.stderr.decode().splitlines() if line.startswith("[TraceML]")][-4:]
    assert "Stderr:" in last_lines[0]
    assert "Stdout:" in last_lines[1]
    assert "elemetry" in last_lines[2]
    assert "raining" in last_lines[3]


def test_stopped_daemon_costs_neither_exit_code_nor_report(tmp_path: Path) -> None:
    with start_run(["--nproc-per-node=2", OWN_SCRIPTS / "healthy.py", *LONG_ENOUGH], cwd=tmp_path) as run:
        run.wait_for_output("step 60")
        run.signal(daemon_pid(run), signal.SIGSTOP)
        done = run.finish()
        assert run.marked() == []
    manifest = folder(tmp_path).manifest()
    assert (done.exit_code, manifest["status"]) == (0, "completed")
    assert b"started again (1 of 3)" in done.stderr
    assert (manifest["telemetry_status"], manifest["telemetry_reason"]) == ("complete", None)
    assert steps_of(folder(tmp_path)) == {0: [80], 1: [80]}
    assert lag_s(done, folder(tmp_path)) < 20


def test_exit_code_of_a_rank_is_in_the_report(tmp_path: Path) -> None:
    arguments = ["--nproc-per-node=2", OWN_SCRIPTS / "ends_itself.py", "--how", "sys_exit"]
    with start_run(arguments, cwd=tmp_path) as run:
        done = run.finish()
    failure = folder(tmp_path).failure()
    assert done.exit_code == 1
    assert (failure["initiating_rank"], failure["exit_code"], failure["category"]) == (1, 3, "nonzero_exit")
    assert folder(tmp_path).summary()["failure"] == failure
    assert "3" in folder(tmp_path).manifest()["training"]["failure_sentence"]


def test_rank_that_never_joined_is_missing_and_costs_no_time(tmp_path: Path) -> None:
    """Rank 1's interpreter ends before any code of ours runs in it."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os\nif os.environ.get('RANK') == '1':\n    os._exit(5)\n")
    environ = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
    with start_run(["--nproc-per-node=2", OWN_SCRIPTS / "healthy.py"], cwd=tmp_path, environ=environ) as run:
        done = run.finish()
    telemetry = folder(tmp_path).summary()["telemetry"]
    assert done.exit_code == 1
    assert 1 in [missing["rank"] for missing in telemetry["ranks_missing"]]
    assert all(missing["why"] for missing in telemetry["ranks_missing"])
    assert (telemetry["status"], telemetry["reason"]) == ("degraded", "finalization_warning")
    assert lag_s(done, folder(tmp_path)) < 5


def test_rank_that_joined_and_went_silent_is_missing_and_costs_no_time(tmp_path: Path) -> None:
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3"}
    with start_run(["--nproc-per-node=2", SCRIPTS / "goes_silent.py"], cwd=tmp_path, environ=environ) as run:
        run.wait_for_output("step 10")
        run.wait_for(lambda: _is_any_stopped(run), "rank 1 has stopped itself")
        run.signal(run.process.pid, signal.SIGTERM)
        done = run.finish()
        assert run.marked() == []
    assert done.exit_code == 143
    manifest, telemetry = folder(tmp_path).manifest(), folder(tmp_path).summary()["telemetry"]
    assert manifest["status"] == "interrupted"
    assert 1 in [missing["rank"] for missing in telemetry["ranks_missing"]]
    assert steps_of(folder(tmp_path))[1] == [10]
    assert lag_s(done, folder(tmp_path)) < 5


def test_connection_that_stays_open_costs_no_time(tmp_path: Path) -> None:
    """A killed rank's forked child still holds the rank's sockets."""
    with start_run(["--nproc-per-node=2", SCRIPTS / "leaves_child_with_sockets.py"], cwd=tmp_path) as run:
        done = run.finish()
        assert run.marked() == []
    assert done.exit_code == 1
    assert steps_of(folder(tmp_path)) == {0: [12], 1: [12]}
    assert 1 in [missing["rank"] for missing in folder(tmp_path).summary()["telemetry"]["ranks_missing"]]
    assert lag_s(done, folder(tmp_path)) < 5


def test_killed_launcher_leaves_a_finished_report_and_nobody(tmp_path: Path) -> None:
    with start_run(["--nproc-per-node=2", OWN_SCRIPTS / "healthy.py", *LONG_ENOUGH], cwd=tmp_path) as run:
        run.wait_for_output("step 20")  # a rank sends what it has once a second
        run.signal(run.process.pid, signal.SIGKILL)
        run.process.wait(10)
        wait_until(lambda: not run.marked(), "nothing of the run is left", within_s=40)
    manifest = folder(tmp_path).manifest()
    assert (manifest["status"], manifest["training"]["exit_code"]) == ("failed", None)
    assert manifest["lifecycle"]["training_ended_at"] is not None
    assert manifest["telemetry_status"] in ("complete", "degraded")
    # What a rank had not sent yet went with the launcher, who held its recorder: at most a second's steps.
    assert all(attempts[0] > 0 for attempts in steps_of(folder(tmp_path)).values())


def test_disabled_is_plain_torchrun_with_the_same_supervision(tmp_path: Path) -> None:
    # No process group: gloo's own threads abort some healthy processes at their exit, under plain torchrun too.
    with start_run(["--disable-traceml", "--nproc-per-node=2", SCRIPTS / "prints.py"], cwd=tmp_path) as run:
        done = run.finish()
    manifest = folder(tmp_path).manifest()
    assert (done.exit_code, manifest["status"]) == (0, "completed")
    assert (manifest["telemetry_status"], manifest["telemetry_reason"]) == ("unavailable", "disabled")
    assert not (folder(tmp_path).path / "final_summary.json").exists()


def _is_any_stopped(run: RunningCommand) -> bool:
    states = [Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for process in run.marked()]
    return "T" in states
