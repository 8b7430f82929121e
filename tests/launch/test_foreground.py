"""A real terminal: its signals count as the launcher's, arrive once, and Ctrl-Z with `fg` stops and resumes all."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import MARK, find_marked, signal_marked, wait_until
from tests.harness.torchrun import clean_environment
from tests.launch.launcher import REPOSITORY, launcher_argv, run_folder, workers
from traceml_launch.system import processes

TICKS = """
import time
print("ready")
count = 0
while True:
    time.sleep(0.02)
    count += 1
    open("ticks", "w").write(str(count))
"""
ENDS_BY_SIGNAL = "import time; print('ready'); time.sleep(60)"


class Terminal:
    """A pseudo-terminal with the mini shell on it."""

    def __init__(self, cwd: Path, argv: list[str], mark: str) -> None:
        self.mark = mark
        self.shown = b""
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            environ = {**clean_environment(), "PYTHONPATH": str(REPOSITORY), MARK: mark}
            os.execve(sys.executable, [sys.executable, "-m", "tests.launch.mini_shell", *argv], environ)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: bytes, *, within_s: float = 30.0) -> None:
        """Raises TimeoutError with what the terminal shows."""
        deadline_s = time.monotonic() + within_s
        while text not in self.shown:
            if not select.select([self._master], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                raise TimeoutError(f"{text!r} is not shown: {self.shown.decode(errors='replace')}")
            try:
                self.shown += os.read(self._master, 65536)
            except OSError:
                raise TimeoutError(f"{text!r} was not shown: {self.shown.decode(errors='replace')}") from None

    def hang_up(self) -> None:
        os.close(self._master)
        self._master = -1

    def launcher_child(self, sign: str) -> int:
        """The pid of the launcher's child whose command line contains `sign`."""
        (shell_child,) = processes.children_of(self.pid)
        found = [pid for pid in processes.children_of(shell_child) if sign in processes.command_of(pid)]
        (child,) = [pid for pid in found if "run_launcher" not in processes.command_of(pid)]
        return child

    def close(self) -> None:
        for each in find_marked(MARK, self.mark):
            signal_marked(MARK, self.mark, each.pid, signal.SIGKILL)
        if self._master >= 0:
            os.close(self._master)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    argv = launcher_argv(tmp_path, *workers(1, request.param), is_disabled=True)
    terminal = Terminal(tmp_path, argv, f"{tmp_path.name}-{os.getpid()}")
    yield terminal
    terminal.close()


@pytest.mark.parametrize("terminal", [ENDS_BY_SIGNAL], indirect=True)
@pytest.mark.parametrize(("key", "name", "code"), [(b"\x03", "SIGINT", 130), (b"\x1c", "SIGQUIT", 131)])
def test_a_key_is_a_signal_to_the_launcher_and_arrives_once(
    tmp_path: Path, terminal: Terminal, key: bytes, name: str, code: int
) -> None:
    terminal.wait_for(b"ready")
    terminal.type(key)
    terminal.wait_for(b"[exit %d]" % code)
    assert terminal.shown.count(f"agent got {name}".encode()) == 1
    assert run_folder(tmp_path).manifest()["status"] == "interrupted"
    assert run_folder(tmp_path).node()["interrupted_by"] == name


@pytest.mark.parametrize("terminal", [ENDS_BY_SIGNAL], indirect=True)
def test_a_kill_of_torchrun_is_not_mistaken_for_a_key(tmp_path: Path, terminal: Terminal) -> None:
    terminal.wait_for(b"ready")
    os.kill(terminal.launcher_child("stub_torchrun"), signal.SIGINT)
    terminal.wait_for(b"[exit 1]")
    assert run_folder(tmp_path).manifest()["status"] == "failed"
    assert run_folder(tmp_path).node()["interrupted_by"] is None


@pytest.mark.parametrize("terminal", [ENDS_BY_SIGNAL], indirect=True)
def test_a_terminal_that_hangs_up(tmp_path: Path, terminal: Terminal) -> None:
    terminal.wait_for(b"ready")
    terminal.hang_up()
    wait_until(lambda: find_marked(MARK, terminal.mark) == [], "everything has ended", within_s=30.0)
    assert run_folder(tmp_path).node()["interrupted_by"] == "SIGHUP"
    assert run_folder(tmp_path).manifest()["status"] == "interrupted"


@pytest.mark.parametrize("terminal", [TICKS], indirect=True)
def test_ctrl_z_stops_the_whole_command_and_fg_resumes_it(tmp_path: Path, terminal: Terminal) -> None:
    terminal.wait_for(b"ready")
    wait_until(lambda: _ticks(tmp_path) > 0, "it trains", within_s=10.0)
    terminal.type(b"\x1a")
    terminal.wait_for(b"[stopped, terminal with the job]")
    trainers = [each for each in find_marked(MARK, terminal.mark) if "tests.launch.stub_" in each.command]
    pids = [each.pid for each in trainers if "run_launcher" not in each.command]
    assert len(pids) == 2
    wait_until(lambda: _states(pids) == ["T", "T"], "torchrun and its worker are stopped", within_s=10.0)
    stopped_at = _ticks(tmp_path)
    terminal.type(b"\n")
    wait_until(lambda: _ticks(tmp_path) > stopped_at, "it trains again", within_s=10.0)
    terminal.type(b"\x03")
    terminal.wait_for(b"[exit 130]")


@pytest.mark.parametrize(
    "terminal", ["print('name?', flush=True); print('hello', sys.stdin.readline())"], indirect=True
)
def test_training_reads_the_terminal(terminal: Terminal) -> None:
    terminal.wait_for(b"name?")
    terminal.type(b"you\n")
    terminal.wait_for(b"hello you")
    terminal.wait_for(b"[exit 0]")


def _ticks(cwd: Path) -> int:
    try:
        return int((cwd / "ticks").read_text() or 0)
    except FileNotFoundError:
        return 0


def _states(pids: list[int]) -> list[str]:
    stats = [processes.read_stat(pid) for pid in pids]
    return [stat.state for stat in stats if stat is not None]
