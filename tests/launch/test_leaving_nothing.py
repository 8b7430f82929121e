"""After the end nothing of the run is left, and nothing of anybody else was touched."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.harness.processes import wait_until
from tests.launch.launcher import child_pid, launch, run_folder, workers

DETACHES = """
import subprocess
upload = subprocess.Popen(["sh", "-c", {command!r}], start_new_session=True)
"""
LEAVES_CHILD = "import subprocess; subprocess.Popen(['sleep', '60'])"


def test_a_child_that_a_rank_left_in_its_session_is_ended(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, LEAVES_CHILD), linger_s=600.0) as command:
        assert command.finish(within_s=30.0).exit_code == 0
        assert command.marked() == []
    (left,) = run_folder(tmp_path).node()["processes_left"]
    assert (left["command"], left["is_detached"], left["ending"]) == ("sleep 60", False, "terminated")


def test_a_detached_upload_is_ended_at_once_without_linger(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, DETACHES.format(command="exec sleep 60")), linger_s=0.0) as command:
        assert command.finish(within_s=30.0).exit_code == 0
        assert command.marked() == []
    (left,) = run_folder(tmp_path).node()["processes_left"]
    assert (left["is_detached"], left["ending"]) == (True, "terminated")


def test_a_detached_upload_may_finish_within_the_linger_time(tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = DETACHES.format(command=f"sleep 1; echo late words; touch {done}")
    with launch(tmp_path, *workers(1, script), linger_s=60.0) as command:
        finished = command.finish(within_s=30.0)
        assert command.marked() == []
    assert finished.exit_code == 0
    assert done.exists()
    left = run_folder(tmp_path).node()["processes_left"]
    assert {(each["is_detached"], each["ending"]) for each in left} == {(True, "ended_by_itself")}
    assert b"late words\n" in run_folder(tmp_path).rank_stream(0, "stdout")
    assert run_folder(tmp_path).manifest()["status"] == "completed"


def test_a_detached_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = DETACHES.format(command="trap '' TERM; while :; do sleep 0.1; done")
    with launch(tmp_path, *workers(1, script), linger_s=0.0) as command:
        assert command.finish(within_s=30.0).exit_code == 0
        assert command.marked() == []
    endings = {each["ending"] for each in run_folder(tmp_path).node()["processes_left"]}
    assert "killed" in endings


def test_a_detached_process_without_the_mark_is_found(tmp_path: Path) -> None:
    script = DETACHES.format(command="exec env -i sleep 61")
    with launch(tmp_path, *workers(1, script), linger_s=0.0) as command:
        assert command.finish(within_s=30.0).exit_code == 0
    (left,) = run_folder(tmp_path).node()["processes_left"]
    assert (left["command"], left["ending"]) == ("sleep 61", "terminated")


def test_a_signal_ends_the_lingering(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, DETACHES.format(command="exec sleep 60")), linger_s=600.0) as command:
        command.wait_for(lambda: run_folder_is_final(tmp_path), "the reports are written")
        command.signal(command.process.pid, signal.SIGTERM)
        finished = command.finish(within_s=30.0)
        assert command.marked() == []
    assert finished.exit_code == 0
    assert run_folder(tmp_path).manifest()["status"] == "completed"


def test_a_foreign_process_is_not_touched(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"], env={**os.environ, "TRACEML_RUN_NONCE": "of another run"})
    try:
        with launch(tmp_path, *workers(1, LEAVES_CHILD)) as command:
            assert command.finish(within_s=30.0).exit_code == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_children_from_before_the_launcher_are_not_the_runs(tmp_path: Path) -> None:
    pid_file = tmp_path / "stranger"
    with launch(tmp_path, "true", is_disabled=True) as command:
        command.finish()
        argv = [str(each) for each in command.process.args]
    script = f'sleep 60 & echo $! > {pid_file}; exec "$@"'
    with subprocess.Popen(["sh", "-c", script, "sh", *argv], env=_environment(), cwd=tmp_path) as shell:
        shell.wait(30)
    stranger = int(pid_file.read_text())
    os.kill(stranger, signal.SIGKILL)


@pytest.mark.parametrize("code", ["ready", "deaf"])
def test_a_killed_launcher_takes_everything_with_it(tmp_path: Path, code: str) -> None:
    script = "import time; print('ready'); time.sleep(60)"
    flags = ["--deaf"] if code == "deaf" else []
    options = {"shutdown_timeout_s": 1.0, "grace_s": 2.0, "is_disabled": True}
    environ = {"TMPDIR": tempfile.mkdtemp(prefix="t-")}
    with launch(tmp_path, *workers(1, script, *flags), environ=environ, **options) as command:
        command.wait_for_output("ready")
        agent = child_pid(command, "stub_torchrun")
        command.signal(command.process.pid, signal.SIGKILL)
        assert command.finish().exit_code == -signal.SIGKILL
        wait_until(lambda: command.marked() == [], "nothing is left", within_s=20.0)
        assert agent not in [each.pid for each in command.marked()]
    os.rmdir(environ["TMPDIR"])
    assert run_folder(tmp_path).manifest()["status"] == "running"


def run_folder_is_final(cwd: Path) -> bool:
    try:
        return run_folder(cwd).manifest()["lease"] is None
    except FileNotFoundError:
        return False


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
