"""What ranks print under the real launcher: every byte, in its own file, live, whatever the terminal does."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.faults.runner import small_tmpfs
from tests.harness.processes import wait_until
from tests.harness.torchrun import RunFolder, start_run, start_torchrun

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(120)]


def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "logs" / "run")


def test_streams_are_those_of_plain_torchrun(tmp_path: Path) -> None:
    plain_arguments = ["--nproc-per-node=2", "--redirects=3", f"--log-dir={tmp_path / 'plain'}", SCRIPTS / "prints.py"]
    with start_torchrun(plain_arguments, cwd=tmp_path, name="plain") as plain:
        assert plain.finish().exit_code == 0
    with start_run(["--nproc-per-node=2", SCRIPTS / "prints.py"], cwd=tmp_path) as run:
        done = run.finish()
    assert done.exit_code == 0
    for rank in range(2):
        for stream in ("stdout", "stderr"):
            (expected,) = (tmp_path / "plain").glob(f"*/attempt_0/{rank}/{stream}.log")
            assert folder(tmp_path).rank_stream(rank, stream) == expected.read_bytes()


def test_stdout_stays_stdout_and_lines_stay_whole(tmp_path: Path) -> None:
    with start_run(["--nproc-per-node=2", SCRIPTS / "prints.py"], cwd=tmp_path) as run:
        done = run.finish()
    kept = folder(tmp_path).training_stream("stdout")
    assert b"complaint" not in done.stdout
    assert kept.count(b"y" * 60_000) == 2  # a longer one, or one that takes 100 ms on a terminal, is shown in pieces
    for rank in range(2):
        for number in range(200):
            line = f"rank {rank} line {number} ".encode() + b"x" * (number % 50)
            assert re.search(rb"^" + re.escape(line) + rb"$", kept, re.MULTILINE)
            complaint = f"rank {rank} complaint {number}".encode()
            assert re.search(rb"^" + complaint + rb"$", done.stderr, re.MULTILINE)
    assert sorted(kept.replace(b"\n", b"")) == sorted(done.stdout.replace(b"\n", b""))


def test_last_words_before_a_kill_are_in_the_files(tmp_path: Path) -> None:
    with start_run(["--nproc-per-node=2", SCRIPTS / "last_words.py"], cwd=tmp_path) as run:
        done = run.finish()
    assert done.exit_code == 1
    ends = {end["rank"]: end["signal"] for end in folder(tmp_path).node()["ranks"]}
    for rank in [rank for rank, name in ends.items() if name == "SIGKILL"]:
        assert folder(tmp_path).rank_stream(rank, "stdout") == f"the last words of {rank}\n".encode()
        assert folder(tmp_path).rank_stream(rank, "stderr").endswith(b"and its last complaint\n")
    assert "SIGKILL" in ends.values()


def test_full_log_volume_stops_nobody(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small volume needs root")
    with small_tmpfs("6m") as volume:
        arguments = ["--nproc-per-node=1", SCRIPTS / "floods.py", "12", tmp_path / "done"]
        with start_run(arguments, cwd=tmp_path, logs_dir=volume) as run:
            done = run.finish(within_s=90)
        assert done.exit_code == 0
        assert (tmp_path / "done").exists()
        assert done.stdout.count(b"\n") == 12 * 1024
        kept = RunFolder(volume / "run").rank_stream(0, "stdout")
        assert 0 < len(kept) < 12 << 20
        assert kept == done.stdout[: len(kept)]


def test_no_save_training_output_gives_the_terminal_back(tmp_path: Path) -> None:
    arguments = ["--nproc-per-node=1", "--no-save-training-output", SCRIPTS / "prints.py"]
    with start_run(arguments, cwd=tmp_path) as run:
        done = run.finish()
    assert done.exit_code == 0
    assert b"straight to the descriptor\n" in done.stdout
    assert list((tmp_path / "logs").rglob("*stdout.log")) == []


def test_rank_of_a_killed_launcher_still_writes_its_checkpoint(tmp_path: Path) -> None:
    arguments = ["--nproc-per-node=2", SCRIPTS / "checkpoints_on_sigterm.py", tmp_path]
    with start_run(arguments, cwd=tmp_path) as run:
        run.wait_for(lambda: run.stdout().count(b"training") == 2, "both ranks train", within_s=60)
        run.signal(run.process.pid, signal.SIGKILL)
        assert run.process.wait(10) == -signal.SIGKILL
        wait_until(lambda: not run.marked(), "nothing of the run is left", within_s=40)
    assert {path.name for path in tmp_path.glob("checkpoint_*")} == {"checkpoint_0", "checkpoint_1"}
    for rank in range(2):
        assert folder(tmp_path).rank_stream(rank, "stdout").count(b"saves after signal 15") == 100
    manifest = folder(tmp_path).manifest()
    assert manifest["status"] == "failed"
    assert manifest["training"]["exit_code"] is None
    assert manifest["lifecycle"]["training_ended_at"] is not None
