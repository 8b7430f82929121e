"""Neither a terminal that stops reading nor a volume that is full holds training up, and neither is kept secret."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.harness.torchrun import start
from tests.launch.launcher import REPOSITORY, launch, launcher_argv, run_folder, workers

NUM_BYTES = 12 << 20
"""Over what a pipe and the launcher's buffer hold together."""
WRITES_MUCH = (
    f"import sys; line = b'x' * 1023 + b'\\n'; [sys.stdout.buffer.write(line) for _ in range({NUM_BYTES // 1024})]"
)


def test_a_terminal_that_stops_reading(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    with launch(tmp_path, sys.executable, "-c", WRITES_MUCH, stdout=write_fd, is_disabled=True) as command:
        finished = command.finish(within_s=50.0)
    os.close(read_fd)
    os.close(write_fd)
    assert finished.exit_code == 0
    assert len(run_folder(tmp_path).training_stream("stdout")) == NUM_BYTES
    told = re.search(rb"the terminal did not take (\d+) bytes of training's stdout", finished.stderr)
    assert told is not None
    assert 0 < int(told[1]) < NUM_BYTES


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with launch(tmp_path, "sh", "-c", "echo one; sleep 0.3; echo two", stdout=write_fd, is_disabled=True) as command:
        finished = command.finish()
    os.close(write_fd)
    assert finished.exit_code == 0
    assert run_folder(tmp_path).training_stream("stdout") == b"one\ntwo\n"


def test_a_volume_that_takes_no_more(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -f 16; exec "$@"', "sh"]
    script = "import sys; print('y' * 100_000); print('done')"
    argv = launcher_argv(tmp_path, sys.executable, "-c", script, is_disabled=True)
    null = os.open(os.devnull, os.O_WRONLY)
    environ = {"PYTHONPATH": str(REPOSITORY)}
    with start([*limited, *argv], cwd=tmp_path, environ=environ, stdout=null) as command:
        finished = command.finish()
    os.close(null)
    assert finished.exit_code == 0
    kept = len(run_folder(tmp_path).training_stream("stdout"))
    assert 0 < kept < 100_000
    assert f"training.stdout.log lacks {100_006 - kept} bytes: File too large" in finished.stderr.decode()
    assert run_folder(tmp_path).manifest()["status"] == "completed"


def test_capped_logs_keep_head_and_tail_of_every_stream(tmp_path: Path) -> None:
    script = "[print(f'line {n:06}') for n in range(1000)]"
    with launch(tmp_path, *workers(1, script), max_log_bytes=1000) as command:
        finished = command.finish()
    assert finished.stdout.count(b"line ") == 1000
    kept = run_folder(tmp_path).rank_stream(0, "stdout")
    assert kept.startswith(b"line 000000\n")
    assert kept.endswith(b"line 000999\n")
    assert b"\n[TraceML] 11000 bytes were cut here (--max-log-bytes 1000)\n" in kept


def test_without_saved_output_training_inherits_the_descriptors(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, "print('hello')"), is_output_saved=False) as command:
        finished = command.finish()
    assert finished.stdout == b"agent started\nhello\n"
    assert b"Stdout:" not in finished.stderr
    assert not list(run_folder(tmp_path).path.rglob("*out.log"))


def test_streams_that_torchrun_redirects_stay_its_own_and_are_linked(tmp_path: Path) -> None:
    script = "import os; print('hello', flush=True)"
    argv = workers(1, script, "--redirect", str(tmp_path / "theirs"))
    with launch(tmp_path, *argv, are_streams_torchruns=True) as command:
        finished = command.finish()
    link = run_folder(tmp_path).path / "nodes/node_0/ranks/rank_0/attempt_0/stdout.log"
    assert finished.exit_code == 0
    assert link.readlink() == tmp_path / "theirs"
    assert link.read_bytes() == b"hello\n"


def test_what_torchrun_keeps_from_the_terminal_is_kept_in_the_files_only(tmp_path: Path) -> None:
    script = "import os, sys; print('kept', flush=True); print('shown', file=sys.stderr, flush=True)"
    with launch(tmp_path, *workers(1, script, "--redirect", os.devnull)) as command:
        finished = command.finish()
    folder = run_folder(tmp_path)
    assert finished.stdout == b"agent started\n"
    assert b"shown\n" in finished.stderr
    assert folder.rank_stream(0, "stdout") == b"kept\n"
    assert b"kept\n" in folder.training_stream("stdout")


def test_a_progress_bar_is_live(tmp_path: Path) -> None:
    script = "import time; print('\\r 10%', end='', flush=True); time.sleep(60)"
    with launch(tmp_path, *workers(1, script)) as command:
        command.wait_for(lambda: command.stdout().endswith(b"\r 10%"), "the bar is shown")


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_standard_streams_stay_apart(tmp_path: Path, name: str) -> None:
    with launch(tmp_path, *workers(1, f"print('hello', file=sys.{name})")) as command:
        finished = command.finish()
    other = finished.stderr if name == "stdout" else finished.stdout
    assert b"hello\n" in getattr(finished, name)
    assert b"hello" not in other
