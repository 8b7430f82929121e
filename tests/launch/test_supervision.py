"""The launcher as a process: exit codes, signals, streams, deaths and leftovers, around a stand-in for torchrun."""

from __future__ import annotations

import contextlib
import select
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.harness.torchrun import clean_environment, start
from tests.launch.launcher import REPOSITORY, child_pid, launch, launcher_argv, run_folder, workers

HANDLES_TERM = """
import signal, time
def on_term(number, frame):
    print("rank", rank, "saves"); sys.exit(0)
signal.signal(signal.SIGTERM, on_term)
print("ready", rank)
while True: time.sleep(0.05)
"""
IGNORES_TERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", rank)
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_is_the_childs(tmp_path: Path, code: int) -> None:
    with launch(tmp_path, "sh", "-c", f"echo out; echo err >&2; exit {code}", is_disabled=True) as command:
        finished = command.finish()
    folder = run_folder(tmp_path)
    assert finished.exit_code == code
    assert finished.stdout == b"out\n"
    assert b"err\n" in finished.stderr
    assert folder.training_stream("stdout") == b"out\n"
    assert folder.training_stream("stderr") == b"err\n"
    manifest = folder.manifest()
    assert manifest["status"] == ("completed" if code == 0 else "failed")
    assert (manifest["training"]["exit_code"], manifest["telemetry_reason"]) == (code, "disabled")
    assert manifest["lease"] is None


def test_the_last_lines_come_in_order_and_quiet_keeps_only_errors(tmp_path: Path) -> None:
    with launch(tmp_path, "sh", "-c", "echo err >&2; exit 3", is_disabled=True) as command:
        lines = command.finish().stderr.decode().splitlines()
    node = run_folder(tmp_path).path / "nodes" / "node_0"
    assert lines == [
        f"[TraceML] Run stub: {run_folder(tmp_path).path}",
        "err",
        f"[TraceML] Stderr: {node}/training.stderr.log",
        f"[TraceML] Stdout: {node}/training.stdout.log",
        "[TraceML] Telemetry: unavailable (disabled)",
        "[TraceML] Training failed: torchrun exited with code 3.",
    ]
    with launch(tmp_path, "true", is_disabled=True, is_quiet=True, run_name="other") as command:
        assert command.finish().stderr == b""


def test_standard_input_reaches_training(tmp_path: Path) -> None:
    argv = launcher_argv(tmp_path, "cat", is_disabled=True)
    environ = {**clean_environment(), "PYTHONPATH": str(REPOSITORY)}
    finished = subprocess.run(argv, input=b"typed\n", stdout=subprocess.PIPE, env=environ, timeout=60)
    assert (finished.returncode, finished.stdout) == (0, b"typed\n")


def test_a_long_folder_for_temporary_files(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    with launch(tmp_path, *workers(1, "print('hello')"), environ={"TMPDIR": str(long)}) as command:
        assert command.finish().exit_code == 0
    assert run_folder(tmp_path).rank_stream(0, "stdout") == b"hello\n"


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with launch(tmp_path, "/nowhere/torchrun", is_disabled=True) as command:
        finished = command.finish()
    assert finished.exit_code == 1
    assert b"torchrun cannot be started" in finished.stderr
    assert run_folder(tmp_path).manifest()["status"] == "failed"


def test_each_rank_keeps_its_own_streams_and_last_words(tmp_path: Path) -> None:
    code = "print('out', rank); print('err', rank, file=sys.stderr); os.write(1, b'last'); os.kill(os.getpid(), 9)"
    with launch(tmp_path, *workers(2, code)) as command:
        finished = command.finish()
    folder = run_folder(tmp_path)
    assert finished.exit_code == 1
    for rank in range(2):
        assert folder.rank_stream(rank, "stdout") == f"out {rank}\nlast".encode()
        assert folder.rank_stream(rank, "stderr") == f"err {rank}\n".encode()
    merged = folder.training_stream("stdout").splitlines()
    assert sorted(merged) == [b"agent started", b"last", b"last", b"out 0", b"out 1"]
    assert sorted(finished.stdout.splitlines()) == sorted(merged)


def test_deaths_are_told_in_order_with_their_code_and_source(tmp_path: Path) -> None:
    code = "import time; time.sleep(0 if rank == 1 else 0.5); sys.exit(7) if rank == 1 else os.kill(os.getpid(), 11)"
    with launch(tmp_path, *workers(2, code)) as command:
        assert command.finish().exit_code == 1
    ranks = {each["rank"]: each for each in run_folder(tmp_path).node()["ranks"]}
    assert [(ranks[1][name]) for name in ("death_order", "exit_code", "signal")] == [0, 7, None]
    assert [(ranks[0][name]) for name in ("death_order", "exit_code", "signal")] == [1, None, "SIGSEGV"]
    assert {each["exit_source"] for each in ranks.values()} <= {"pidfd", "proc_stat"}
    assert ranks[1]["died_ns"] < ranks[0]["died_ns"]


def test_a_dead_ranks_recorder_is_kept(tmp_path: Path) -> None:
    code = "[recorder.record_step((0, n, 1, 1, 1, 1, 1, 5)) for n in range(49)]; os.kill(os.getpid(), 9)"
    with launch(tmp_path, *workers(1, code)) as command:
        assert command.finish().exit_code == 1
    folder = run_folder(tmp_path)
    (rank,) = folder.node()["ranks"]
    assert (rank["num_steps_recorded"], rank["is_marker_sent"]) == (49, False)
    recorder = folder.path / "nodes/node_0/ranks/rank_0/attempt_0/recorder.bin"
    assert recorder.stat().st_size > recorder.stat().st_blocks * 512


@pytest.mark.parametrize(("number", "code"), [("SIGHUP", 129), ("SIGINT", 130), ("SIGQUIT", 131), ("SIGTERM", 143)])
def test_a_signal_is_passed_on_once_and_the_run_is_interrupted(tmp_path: Path, number: str, code: int) -> None:
    with launch(tmp_path, *workers(1, HANDLES_TERM.replace("SIGTERM", number))) as command:
        command.wait_for_output("ready 0")
        command.signal(command.process.pid, signal.Signals[number])
        finished = command.finish()
    folder = run_folder(tmp_path)
    assert finished.exit_code == code
    assert finished.stderr.count(f"agent got {number}".encode()) == 1
    assert b"rank 0 saves\n" in finished.stdout
    assert folder.manifest()["status"] == "interrupted"
    assert folder.node()["interrupted_by"] == number


def test_the_time_of_a_signal_is_before_all_answers_to_it(tmp_path: Path) -> None:
    """What a rank raises in its handler is else taken for a failure that came first."""
    answers = HANDLES_TERM.replace('print("rank", rank, "saves")', 'print("answered", time.time_ns(), flush=True)')
    with launch(tmp_path, *workers(1, answers)) as command:
        command.wait_for_output("ready 0")
        command.signal(command.process.pid, signal.SIGTERM)
        finished = command.finish()
    answered_ns = next(int(line.split()[1]) for line in finished.stdout.splitlines() if line.startswith(b"answered"))
    with contextlib.closing(sqlite3.connect(run_folder(tmp_path).path / "telemetry.sqlite")) as database:
        (known_ns,) = database.execute("SELECT value FROM meta WHERE key = 'interrupted_ns'").fetchone()
    assert int(known_ns) < answered_ns


@pytest.mark.parametrize(("number", "is_heard"), [("INT", True), ("QUIT", True), ("HUP", False)])
def test_a_job_script_interrupts_what_it_started_in_the_background(tmp_path: Path, number: str, is_heard: bool) -> None:
    """`&` and `nohup` have a child ignore signals; only of a hang-up that is meant to last."""
    argv = launcher_argv(tmp_path, *workers(1, HANDLES_TERM))
    script = ["sh", "-c", f'trap "" {number}; exec "$@"', "sh", *argv]
    with start(script, cwd=tmp_path, environ={"PYTHONPATH": str(REPOSITORY)}) as command:
        command.wait_for_output("ready 0")
        command.signal(command.process.pid, signal.Signals[f"SIG{number}"])
        if not is_heard:
            command.signal(command.process.pid, signal.SIGTERM)
        expected = signal.Signals[f"SIG{number}"] if is_heard else signal.SIGTERM
        assert command.finish().exit_code == 128 + expected
    assert run_folder(tmp_path).manifest()["status"] == "interrupted"


def test_a_signal_to_torchrun_itself_is_a_failure_of_training(tmp_path: Path) -> None:
    with launch(tmp_path, "sh", "-c", "echo ready; exec sleep 60", is_disabled=True) as command:
        command.wait_for_output("ready")
        command.signal(child_pid(command, "sleep 60"), signal.SIGTERM)
        finished = command.finish()
    assert finished.exit_code == 143
    manifest = run_folder(tmp_path).manifest()
    assert (manifest["status"], manifest["training"]["signal"]) == ("failed", "SIGTERM")


def test_an_agent_that_does_not_end_is_killed_after_its_time(tmp_path: Path) -> None:
    options = {"shutdown_timeout_s": 1.0, "grace_s": 2.0}
    with launch(tmp_path, *workers(1, IGNORES_TERM, "--deaf"), **options) as command:
        command.wait_for_output("ready 0")
        command.signal(command.process.pid, signal.SIGTERM)
        finished = command.finish(within_s=30.0)
        assert command.marked() == []
    assert finished.exit_code == 143
    (rank,) = run_folder(tmp_path).node()["ranks"]
    assert (rank["signal"], rank["stopped_by_launcher"]) == ("SIGKILL", "SIGKILL")


def test_a_second_signal_hurries(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, IGNORES_TERM, "--deaf"), shutdown_timeout_s=600.0) as command:
        command.wait_for_output("ready 0")
        command.signal(command.process.pid, signal.SIGINT)
        command.wait_for(lambda: b"agent got SIGINT" in command.stderr(), "the first is passed on")
        while not select.select([command.pidfd], [], [], 0.2)[0]:
            with contextlib.suppress(LookupError, ProcessLookupError):  # it may end between the look and the signal
                command.signal(command.process.pid, signal.SIGINT)
        finished = command.finish(within_s=30.0)
    assert finished.exit_code == 130
    assert finished.stderr.count(b"agent got SIGINT") == 1


def test_orphans_of_a_killed_torchrun_are_ended(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(2, HANDLES_TERM)) as command:
        command.wait_for(lambda: all(f"ready {rank}".encode() in command.stdout() for rank in range(2)), "both run")
        command.signal(child_pid(command, "stub_torchrun"), signal.SIGKILL)
        finished = command.finish(within_s=30.0)
        assert command.marked() == []
    folder = run_folder(tmp_path)
    assert finished.exit_code == 137
    assert (folder.manifest()["status"], folder.manifest()["training"]["signal"]) == ("failed", "SIGKILL")
    assert [each["exit_code"] for each in folder.node()["ranks"]] == [0, 0]
    assert {each["stopped_by_launcher"] for each in folder.node()["ranks"]} == {"SIGTERM"}
    assert folder.rank_stream(1, "stdout") == b"ready 1\nrank 1 saves\n"


def test_orphans_without_telemetry_are_ended_too(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, HANDLES_TERM), is_disabled=True) as command:
        command.wait_for_output("ready 0")
        command.signal(child_pid(command, "stub_torchrun"), signal.SIGKILL)
        finished = command.finish(within_s=30.0)
        assert command.marked() == []
    assert finished.exit_code == 137
    assert b"rank 0 saves" in finished.stdout
