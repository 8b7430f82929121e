"""The hand-over and what hangs on it: who a worker says it is, a launcher that fails or dies, other programs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.harness.processes import wait_until
from tests.harness.stub_daemon import Behaviour, StubDaemon
from tests.harness.stub_launcher import DEADLINE_S, WORKER, StubLauncher
from tests.harness.torchrun import clean_environment
from traceml_client.protocol.environ import HANDOVER


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def run_plainly(work: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *WORKER, *arguments],
        cwd=work,
        env=clean_environment(**environment),
        capture_output=True,
        timeout=DEADLINE_S,
    )


def test_request_names_the_process_and_its_place(tmp_path: Path, work: Path) -> None:
    (work / "main.py").write_text("import os; print(os.getpid())")
    with StubLauncher(tmp_path) as launcher:
        environment = launcher.environment(rank=3, world_size=8, TORCHELASTIC_RESTART_COUNT="2")
        done = launcher.run(["main.py"], cwd=work, env=environment)
        request = launcher.ranks[0].request
    assert (request.rank, request.local_rank, request.world_size, request.local_world_size) == (3, 3, 8, 8)
    assert request.torch_restart_count == 2
    assert request.pid == int(done.stdout)
    assert request.start_ticks > 0


def test_without_a_launcher_the_script_runs_and_one_line_says_so(work: Path) -> None:
    (work / "main.py").write_text("print('ran'); raise SystemExit(3)")
    done = run_plainly(work, "main.py")
    assert (done.returncode, done.stdout) == (3, b"ran\n")
    assert done.stderr == b"[TraceML] TRACEML_HANDOVER is not set: the script runs without telemetry\n"


def test_socket_that_is_not_there(work: Path) -> None:
    (work / "main.py").write_text("print('ran')")
    done = run_plainly(work, "main.py", **{HANDOVER: str(work / "nowhere.sock")})
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("[TraceML] no telemetry, the launcher's hand-over failed: [Errno 2]")


@pytest.mark.parametrize("answer", [b"", b"\x04\x00\x00\x00junk", b"\xff\xff\xff\xff"])
def test_launcher_that_answers_nonsense(work: Path, answer: bytes) -> None:
    (work / "main.py").write_text("print('ran')")
    path = work / "rude.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer_one() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_one)
        thread.start()
        done = run_plainly(work, "main.py", **{HANDOVER: str(path)})
        thread.join()
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("[TraceML] no telemetry, the launcher's hand-over failed: ")


def test_number_that_is_none_in_the_environment(tmp_path: Path, work: Path) -> None:
    (work / "main.py").write_text("print('ran')")
    with StubLauncher(tmp_path) as launcher:
        done = run_plainly(work, "main.py", **{**launcher.environment(), "RANK": "two"})
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert b"RANK='two' is not a whole number" in done.stderr


def test_without_a_target_it_says_how_it_is_called(work: Path) -> None:
    done = run_plainly(work)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: python -m traceml_client.worker")


def test_streams_that_belong_to_torchrun_stay_there(tmp_path: Path, work: Path) -> None:
    (work / "main.py").write_text("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    with StubLauncher(tmp_path, has_streams=False) as launcher:
        done = launcher.run(["main.py"], cwd=work)
    assert done.outside == b"out\nerr\n"
    assert (done.stdout, done.stderr) == (b"", b"")
    assert done.ring.exit_code() == 3


def test_other_program_gets_the_pipes(tmp_path: Path, work: Path) -> None:
    with StubLauncher(tmp_path) as launcher:
        done = launcher.run(["--exec", "sh", "-c", "echo out; echo err >&2; exit 5", "x"], cwd=work)
    assert (done.exit_code, done.stdout, done.stderr, done.outside) == (5, b"out\n", b"err\n", b"")
    assert not done.ring.is_marker_sent()


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("/etc/passwd", 126)])
def test_other_program_that_is_none(tmp_path: Path, work: Path, program: str, code: int) -> None:
    with StubLauncher(tmp_path) as launcher:
        done = launcher.run(["--exec", program], cwd=work)
    assert done.exit_code == code
    assert done.stderr.startswith(f"[TraceML] cannot execute '{program}'".encode())


SAVES_ON_SIGTERM = """
import signal, sys, time

def save(number, frame):
    print("saving")
    print("saving", file=sys.stderr)
    open("checkpoint", "w").write("weights")
    print("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("ready")
while True:
    print("x" * 1000)  # fills the pipe: nobody reads it
    time.sleep(0.0001)
"""


def test_launcher_killed_the_rank_still_saves_its_checkpoint(tmp_path: Path, work: Path) -> None:
    """Its launcher dies with the pipe full and unread; then torchrun's SIGTERM comes."""
    (work / "main.py").write_text(SAVES_ON_SIGTERM)
    with StubLauncher(tmp_path, is_following=False) as launcher:
        process = launcher.start(["main.py"], cwd=work)
        rank = launcher.wait_for_rank(process.pid)
        log = Path(rank.grant.rank_dir) / "stdout.log"
        wait_until(lambda: _is_blocked_in_write(process.pid), "the pipe is full", within_s=10)
        launcher.die()
        wait_until(lambda: log.stat().st_size > 200_000, "the rank prints into its file", within_s=10)
        process.send_signal(signal.SIGTERM)
        outside, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, outside) == (0, b"")
    assert (work / "checkpoint").read_text() == "weights"
    lines = log.read_text().splitlines()
    assert lines[0] == "ready"
    assert lines[-2:] == ["saving", "saved"]
    assert set(lines[1:-2]) == {"x" * 1000}, "no byte lost or doubled"
    assert (log.parent / "stderr.log").read_text() == "saving\n"


def _is_blocked_in_write(pid: int) -> bool:
    return Path(f"/proc/{pid}/wchan").read_text() in ("pipe_write", "anon_pipe_write") or (
        Path(f"/proc/{pid}/syscall").read_text().split()[0] == "1"
    )


def test_launcher_killed_last_words_are_in_the_file(tmp_path: Path, work: Path) -> None:
    """Nothing of ours runs between the print and the end: the stream itself leads to the file."""
    (work / "main.py").write_text("import os\ninput()\nprint('last words', end='')\nos.kill(os.getpid(), 9)")
    with StubLauncher(tmp_path, is_following=False) as launcher:
        process = launcher.start(["main.py"], cwd=work, stdin=subprocess.PIPE)
        log = Path(launcher.wait_for_rank(process.pid).grant.rank_dir) / "stdout.log"
        launcher.die()
        wait_until(lambda: os.readlink(f"/proc/{process.pid}/fd/1") == str(log), "the stream is moved", within_s=10)
        process.communicate(b"go\n", timeout=DEADLINE_S)
    assert process.returncode == -9
    assert log.read_text() == "last words"


def test_launcher_killed_children_of_the_rank_go_on_printing(tmp_path: Path, work: Path) -> None:
    (work / "main.py").write_text(
        "import subprocess, sys\ncode = 'input(); print(\"child\" * 40000)'\n"
        "subprocess.run([sys.executable, '-uc', code])\nprint('end')"
    )
    with StubLauncher(tmp_path, is_following=False) as launcher:
        process = launcher.start(["main.py"], cwd=work, stdin=subprocess.PIPE)
        rank = launcher.wait_for_rank(process.pid)
        launcher.die()
        process.communicate(b"go\n", timeout=DEADLINE_S)
    assert process.returncode == 0
    text = (Path(rank.grant.rank_dir) / "stdout.log").read_text()
    # The child's last words may still lie in the pipe when the rank prints into the file: no byte is lost, that is all.
    assert text.replace("end\n", "", 1) == "child" * 40000 + "\n"


def test_launcher_killed_a_stream_that_the_script_moved_stays_there(tmp_path: Path, work: Path) -> None:
    (work / "main.py").write_text(
        "import os, sys\nos.dup2(os.open('own.log', os.O_WRONLY | os.O_CREAT), 1)\n"
        "print('moved', file=sys.stderr)\ninput()\nprint('mine')\nprint('yours', file=sys.stderr)"
    )
    with StubLauncher(tmp_path, is_following=False) as launcher:
        process = launcher.start(["main.py"], cwd=work, stdin=subprocess.PIPE)
        rank = launcher.wait_for_rank(process.pid)
        stderr_log = Path(rank.grant.rank_dir) / "stderr.log"
        launcher.die()
        wait_until(lambda: stderr_log.exists() and stderr_log.read_text() == "moved\n", "it is copied", within_s=10)
        process.communicate(b"go\n", timeout=DEADLINE_S)
    assert (work / "own.log").read_text() == "mine\n"
    assert stderr_log.read_text() == "moved\nyours\n"


def test_other_program_survives_its_launcher(tmp_path: Path, work: Path) -> None:
    with StubLauncher(tmp_path, is_following=False) as launcher:
        process = launcher.start(["--exec", "sh", "-c", "read line; echo printed; echo done > file"], cwd=work,
                                 stdin=subprocess.PIPE)  # fmt: skip
        launcher.wait_for_rank(process.pid)
        wait_until(lambda: b"sh" in _program(process.pid), "it has become the other program", within_s=10)
        launcher.die()
        process.communicate(b"go\n", timeout=DEADLINE_S)
    assert process.returncode == 0
    assert (work / "file").read_text() == "done\n"


def _program(pid: int) -> bytes:
    return os.path.basename(os.readlink(f"/proc/{pid}/exe")).encode()


def test_children_by_spawn_and_fork_do_not_connect(tmp_path: Path, work: Path) -> None:
    """Each runs the script's top level, where `init` may stand."""
    (work / "main.py").write_text(
        "import multiprocessing as m, os, sys, traceml_client\n"
        "traceml_client.init()\n"
        "def f(x): traceml_client.init(); traceml_client.stop(); return x\n"
        "if __name__ == '__main__':\n"
        "    for how in ('spawn', 'forkserver', 'fork'):\n"
        "        with m.get_context(how).Pool(1) as pool: print(pool.map(f, [how]))\n"
    )
    with (
        StubDaemon(Behaviour(token="secret")) as daemon,
        StubLauncher(tmp_path, daemon=("127.0.0.1", daemon.port, "secret")) as launcher,
    ):
        done = launcher.run(["main.py"], cwd=work)
        assert len(launcher.ranks) == 1
    assert (done.exit_code, done.stderr) == (0, b"")
    assert done.stdout == b"['spawn']\n['forkserver']\n['fork']\n"
    assert len(daemon.heard.hellos) == 1
    assert [marker.exit_code for marker in daemon.heard.markers] == [0]
    assert done.ring.word(15) == 2, "the marker is acknowledged"


def test_token_is_nowhere_in_the_process(tmp_path: Path, work: Path) -> None:
    (work / "main.py").write_text("import os; print(os.environ); print(open('/proc/self/cmdline').read())")
    with (
        StubDaemon(Behaviour(token="hush-hush")) as daemon,
        StubLauncher(tmp_path, daemon=("127.0.0.1", daemon.port, "hush-hush")) as launcher,
    ):
        done = launcher.run(["main.py"], cwd=work)
    assert done.exit_code == 0
    assert b"hush-hush" not in done.stdout + done.stderr
    assert len(daemon.heard.markers) == 1


def test_daemon_that_is_away_costs_the_exit_little_and_says_nothing(tmp_path: Path, work: Path) -> None:
    """Its launcher holds the ring, and tells the user itself how the daemon is."""
    (work / "main.py").write_text("print('ran')")
    with StubDaemon() as daemon:
        port = daemon.port
    with StubLauncher(tmp_path, daemon=("127.0.0.1", port, "")) as launcher:
        done = launcher.run(["main.py"], cwd=work)
    assert (done.exit_code, done.stdout, done.stderr) == (0, b"ran\n", b"")
    assert done.ring.is_marker_sent()


def test_own_faults_are_in_the_report_too(tmp_path: Path, work: Path) -> None:
    (work / "main.py").write_text("import shutil, sys; shutil.rmtree(sys.argv[1]); 1 / 0")
    ranks = tmp_path / "ranks"
    with StubDaemon() as daemon, StubLauncher(tmp_path, daemon=("127.0.0.1", daemon.port, "")) as launcher:
        done = launcher.run(["main.py", str(ranks)], cwd=work)
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("[TraceML]")]
    assert len(lines) == 1
    assert lines[0].startswith("[TraceML] error record: [Errno 2] No such file or directory")
    (marker,) = daemon.heard.markers
    assert marker.notes == ("a fault of TraceML itself, 1x: error record",)
    assert marker.error is not None, "what matters was kept before the file failed"


def test_script_that_closes_everything_is_still_heard(tmp_path: Path, work: Path) -> None:
    """Our descriptors are closed under us: a new connection is made, and the marker arrives."""
    (work / "main.py").write_text("import os, time; os.closerange(3, 2000); print('closed'); time.sleep(0.2)")
    with (
        StubDaemon() as daemon,
        StubLauncher(tmp_path, daemon=("127.0.0.1", daemon.port, "")) as launcher,
    ):
        done = launcher.run(["main.py"], cwd=work)
    assert (done.exit_code, done.stdout, done.stderr) == (0, b"closed\n", b"")
    assert len(daemon.heard.markers) == 1
