"""Promise 12 with the client's own worker under the launcher: a killed rank is known at once, a stopped one goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.launch.launcher import launch, run_folder, workers

STOPPED_S = 20.0

WAITS = """
import os, time
import traceml_client

with traceml_client.trace_step():
    pass
print("pid", os.environ["RANK"], os.getpid(), flush=True)
while not os.path.exists("go"):
    with traceml_client.trace_step():
        time.sleep(0.01)
"""


def rank_pids(stdout: bytes) -> dict[int, int]:
    words = [line.split() for line in stdout.splitlines() if line.startswith(b"pid ")]
    return {int(rank): int(pid) for _, rank, pid in words}


@pytest.mark.parametrize("within_s", [10.0, pytest.param(1.0, marks=pytest.mark.long)])
def test_a_killed_rank_is_known_at_once(tmp_path: Path, within_s: float) -> None:
    """Its launcher sees the death itself; the daemon is told and the node's report has the time."""
    script = tmp_path / "script.py"
    script.write_text(WAITS)
    with launch(tmp_path, *workers(2, str(script), "--real"), num_local_ranks=2) as command:
        command.wait_for(lambda: len(rank_pids(command.stdout())) == 2, "both train")
        pids = rank_pids(command.stdout())
        killed_ns = time.time_ns()
        command.signal(pids[1], signal.SIGKILL)
        recorder = run_folder(tmp_path).path / "nodes/node_0/ranks/rank_1/attempt_0/recorder.bin"
        command.wait_for(recorder.exists, "its recorder is kept", within_s=5.0)
        (tmp_path / "go").touch()
        assert command.finish().exit_code == 1
    (end,) = [each for each in run_folder(tmp_path).node()["ranks"] if each["rank"] == 1]
    assert (end["signal"], end["death_order"]) == ("SIGKILL", 0)
    assert 0 <= end["died_ns"] - killed_ns < within_s * 1e9
    (missing,) = run_folder(tmp_path).manifest()["telemetry"]["ranks_missing"]
    assert (missing["rank"], missing["why"]) == (1, "killed by SIGKILL")


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_real_rank_that_is_stopped_for_twenty_seconds_loses_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WAITS)
    with launch(tmp_path, *workers(2, str(script), "--real"), num_local_ranks=2) as command:
        command.wait_for(lambda: len(rank_pids(command.stdout())) == 2, "both train")
        pid = rank_pids(command.stdout())[1]
        command.signal(pid, signal.SIGSTOP)
        until_s = time.monotonic() + STOPPED_S
        command.wait_for(lambda: time.monotonic() >= until_s, "it is stopped", within_s=STOPPED_S + 5)
        assert os.path.exists(f"/proc/{pid}")
        command.signal(pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        assert command.finish().exit_code == 0
    manifest = run_folder(tmp_path).manifest()
    assert (manifest["status"], manifest["telemetry_status"]) == ("completed", "complete")
    assert manifest["telemetry"]["records"]["dropped"] == 0
