"""The command's exit code is training's own under every fault of telemetry; nothing of it reaches training's output.

In torchrun's place stands an agent that starts two workers of ours without torch: what is compared is what the command
returns and prints with and without the fault.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.torchrun import RunningCommand
from tests.launch.launcher import launch, run_folder, workers

TRAINING = """
import os, sys, time
import traceml_client

for _ in range(20):
    with traceml_client.trace_step():
        pass
print("half", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
for _ in range(20):
    with traceml_client.trace_step():
        pass
sys.exit(7 * (int(os.environ["RANK"]) == 1))
"""
EXPECTED = {b"agent started": 1, b"half": 2}

Fault = Callable[[RunningCommand, Path], None]


def daemon_pids(command: RunningCommand) -> list[int]:
    return [each.pid for each in command.find("traceml_daemon supervise")]


def killed(command: RunningCommand, cwd: Path) -> None:
    for pid in daemon_pids(command):
        command.signal(pid, signal.SIGKILL)


def stopped(command: RunningCommand, cwd: Path) -> None:
    for pid in daemon_pids(command):
        command.signal(pid, signal.SIGSTOP)


def told_to_stop(command: RunningCommand, cwd: Path) -> None:
    for pid in daemon_pids(command):
        command.signal(pid, signal.SIGTERM)


def without_its_folder(command: RunningCommand, cwd: Path) -> None:
    """What the daemon and the launcher write goes nowhere any more."""
    run_folder(cwd).path.rename(cwd / "moved")


def with_a_full_disk(command: RunningCommand, cwd: Path) -> None:
    """Every further byte that the daemon writes to a file is refused."""
    for pid in daemon_pids(command):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))


def with_a_poisoned_peer(command: RunningCommand, cwd: Path) -> None:
    """Somebody who sends zeros and a header of 4 GiB to every port that the daemon listens on."""
    for port in listening_ports(daemon_pids(command)):
        for junk in (b"\xff\xff\xff\xff", b"\0" * 100_000, os.urandom(4096)):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(junk)


def listening_ports(pids: list[int]) -> list[int]:
    inodes = {
        os.readlink(path).removeprefix("socket:[").removesuffix("]")
        for pid in pids
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if os.readlink(path).startswith("socket:[")
    }
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


FAULTS: list[Fault] = [killed, stopped, told_to_stop, without_its_folder, with_a_full_disk, with_a_poisoned_peer]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_middle_leaves_exit_code_and_output(tmp_path: Path, fault: Fault) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINING)
    with launch(tmp_path, *workers(2, str(script), "--real"), num_local_ranks=2, finalize_timeout_s=5.0) as command:
        command.wait_for(lambda: command.stdout().count(b"half") == 2, "both are half way")
        fault(command, tmp_path)
        (tmp_path / "go").touch()
        finished = command.finish()
        assert command.marked() == []
    assert finished.exit_code == 7
    lines = finished.stdout.splitlines()
    assert {line: lines.count(line) for line in set(lines)} == EXPECTED
    assert b"[TraceML] Training failed: torchrun exited with code 7." in finished.stderr
    if fault is not without_its_folder:
        manifest = run_folder(tmp_path).manifest()
        assert (manifest["status"], manifest["training"]["exit_code"]) == ("failed", 7)
        assert manifest["lease"] is None


def test_a_daemon_that_is_told_to_stop_in_the_middle_has_a_successor(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINING)
    with launch(tmp_path, *workers(2, str(script), "--real"), num_local_ranks=2) as command:
        command.wait_for(lambda: command.stdout().count(b"half") == 2, "both are half way")
        told_to_stop(command, tmp_path)
        command.wait_for(lambda: b"started again (1 of 3)" in command.stderr(), "it is said")
        (tmp_path / "go").touch()
        assert command.finish().exit_code == 7
    manifest = run_folder(tmp_path).manifest()
    records = manifest["telemetry"]["records"]
    assert (manifest["status"], manifest["training"]["exit_code"]) == ("failed", 7)
    assert (manifest["telemetry_status"], records["stored"] + records["salvaged"]) == ("complete", 80)
    assert "finalization_warning" not in manifest["artifacts"]


@pytest.mark.parametrize("is_port_taken", [False, True], ids=["in peace", "port taken"])
def test_the_code_is_the_same_in_peace_and_without_a_daemon(tmp_path: Path, is_port_taken: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINING)
    (tmp_path / "go").touch()
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = {"aggregator_port": holder.getsockname()[1], "is_port_explicit": True} if is_port_taken else {}
        with launch(tmp_path, *workers(2, str(script), "--real"), num_local_ranks=2, **taken) as command:
            finished = command.finish()
    manifest = run_folder(tmp_path).manifest()
    assert finished.exit_code == manifest["training"]["exit_code"] == 7
    assert (manifest["telemetry_status"] == "unavailable") is is_port_taken
