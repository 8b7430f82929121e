"""Promise 2: after the end no process of the run is there, however it ended, and nobody else's was signalled.

Each kind of leftover for itself, the linger time, and signals that hurry are in tests/launch/test_leaving_nothing.py;
what belongs to a run and gets which signal is decided in test_leftovers.py and test_pidfds.py there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import wait_until
from tests.launch.launcher import child_pid, launch, run_folder, workers

SHUTDOWN_TIMEOUT_S = 2.0
PROMISED_S = SHUTDOWN_TIMEOUT_S + 5.0
SLACK_S = 20.0
"""In normal tests, where a busy machine is no failure."""

LEAVES = """
import multiprocessing, os, signal, subprocess, sys, time
import traceml_client

def loads_data():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

if __name__ == "__main__":
    children = [multiprocessing.get_context(kind).Process(target=loads_data) for kind in ("fork", "spawn")]
    for child in children:
        child.start()
    tracker = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with traceml_client.trace_step():
        pass
    print("ready", flush=True)
    if sys.argv[1:] == ["ends"]:
        os._exit(0)
    time.sleep(600)
"""
ENDINGS = {
    "the ranks end": (None, 0),
    "the launcher is told to stop": (signal.SIGTERM, 128 + signal.SIGTERM),
    "the launcher is killed": (signal.SIGKILL, -signal.SIGKILL),
    "torchrun is killed": (signal.SIGKILL, 128 + signal.SIGKILL),
}


@pytest.fixture
def look_alike() -> Iterator[subprocess.Popen[bytes]]:
    """The same command lines, under the mark of another run."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600']); sys.stdin.read()"
    argv = [sys.executable, "-c", code, "traceml_client.worker"]
    environ = {**os.environ, "TRACEML_RUN_NONCE": "of another run"}
    process = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, start_new_session=True)
    wait_until(lambda: len(children(process.pid)) == 1, "its child is there", within_s=10)
    yield process
    assert process.poll() is None
    assert len(children(process.pid)) == 1
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.usefixtures("look_alike")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("within_s", [SLACK_S, pytest.param(PROMISED_S, marks=pytest.mark.long)])
def test_nothing_of_the_run_is_left(tmp_path: Path, ending: str, within_s: float) -> None:
    number, code = ENDINGS[ending]
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    flags = ["--real", "--pass", "ends"] if number is None else ["--real"]
    options = {"num_local_ranks": 2, "shutdown_timeout_s": SHUTDOWN_TIMEOUT_S, "linger_s": 0.0}
    with launch(tmp_path, *workers(2, str(script), *flags), **options) as command:
        command.wait_for(lambda: command.stdout().count(b"ready") == 2, "both ranks have their children")
        if number is not None:
            is_torchrun = ending == "torchrun is killed"
            command.signal(child_pid(command, "stub_torchrun") if is_torchrun else command.process.pid, number)
        started_s = time.monotonic()
        assert command.finish(within_s=60).exit_code == code
        wait_until(lambda: command.marked() == [], "nothing is left", within_s=30)
        took_s = time.monotonic() - started_s
    assert took_s < within_s
    print(f"{ending}: nothing left after {took_s:.1f} s")
    if ending != "the launcher is killed":
        left = run_folder(tmp_path).node()["processes_left"]
        assert {each["ending"] for each in left} <= {"terminated", "killed", "ended_by_itself"}
