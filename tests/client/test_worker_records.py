"""What a worker leaves in its ring and in files, by how its script ends."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.client.rings import new_ring
from tests.harness.stub_launcher import FinishedWorker, StubLauncher
from traceml_client.crash import ErrorRecorder
from traceml_client.protocol import ring
from traceml_client.protocol.columns import NODE_SAMPLE, PROCESS_SAMPLE, RECORD_WORDS, SAMPLE_STREAM
from traceml_client.protocol.environ import ERROR_FILE
from traceml_client.protocol.node import RankError
from traceml_client.recorder import Recorder


def run(tmp_path: Path, script: str, **environment: str) -> FinishedWorker:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "main.py").write_text(script)
    with StubLauncher(tmp_path) as launcher:
        return launcher.run(["main.py"], cwd=folder, env=launcher.environment(**environment))


def error_json(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "ranks" / "rank_0" / "attempt_0" / "error.json").read_bytes())


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [
        ("pass", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('text')", 1),
        ("raise SystemExit(-1)", 255),
        ("1 / 0", 1),
        ("import sys; sys.excepthook = lambda *a: sys.exit(9); 1 / 0", 9),
    ],
)
def test_orderly_end_leaves_its_exit_code_and_the_marker(tmp_path: Path, script: str, exit_code: int) -> None:
    done = run(tmp_path, script)
    assert done.exit_code == exit_code
    assert done.ring.exit_code() == exit_code
    assert done.ring.is_marker_sent()


@pytest.mark.parametrize("script", ["import os; os._exit(7)", "import os; os.kill(os.getpid(), 9)"])
def test_end_without_cleanup_leaves_no_marker(tmp_path: Path, script: str) -> None:
    done = run(tmp_path, script)
    assert not done.ring.is_marker_sent()
    assert done.ring.exit_code() is None


def test_interrupt_leaves_the_error_and_no_exit_code(tmp_path: Path) -> None:
    """The process ends by SIGINT: there is no exit code to claim."""
    done = run(tmp_path, "raise KeyboardInterrupt", **{ERROR_FILE: str(tmp_path / "reply.json")})
    assert done.exit_code == -2
    assert done.ring.exit_code() is None
    error = done.ring.error(ring.MAIN_ERROR)
    assert error is not None
    assert error.type == "KeyboardInterrupt"
    assert not (tmp_path / "reply.json").exists(), "torchelastic writes none for an interrupt either"


def test_uncaught_error_is_in_ring_and_files(tmp_path: Path) -> None:
    reply = tmp_path / "reply.json"
    done = run(tmp_path, "def f():\n    raise ValueError('label 1000')\nf()", **{ERROR_FILE: str(reply)})
    error = done.ring.error(ring.MAIN_ERROR)
    assert error is not None
    assert (error.kind, error.type, error.message) == ("main", "ValueError", "label 1000")
    assert error.traceback == done.stderr.decode()
    written = json.loads(reply.read_bytes())
    assert written["message"]["message"] == "ValueError: label 1000"
    assert written["message"]["extraInfo"]["py_callstack"] == error.traceback
    assert written["message"]["extraInfo"]["timestamp"] == str(error.raised_ns // 10**9)
    ours = error_json(tmp_path)
    assert ours["message"] == written["message"]
    assert [one["type"] for one in ours["errors"]] == ["ValueError"]
    assert ours["schema_version"] == 1


def test_error_file_of_the_scripts_own_record_stays(tmp_path: Path) -> None:
    reply = tmp_path / "reply.json"
    script = f"open({str(reply)!r}, 'w').write('{{\"message\": \"of @record\"}}')\n1 / 0"
    run(tmp_path, script, **{ERROR_FILE: str(reply)})
    assert reply.read_text() == '{"message": "of @record"}'
    ours = error_json(tmp_path)
    assert ours["message"] == "of @record"
    assert ours["errors"][0]["type"] == "ZeroDivisionError"


def test_error_file_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    done = run(tmp_path, "1 / 0", **{ERROR_FILE: str(tmp_path / "nowhere" / "reply.json")})
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("[TraceML]")]
    assert lines == [f"[TraceML] error record: [Errno 2] No such file or directory: "
                     f"'{tmp_path}/nowhere/reply.json' (training goes on)"]  # fmt: skip
    assert done.ring.error(ring.MAIN_ERROR) is not None
    assert done.exit_code == 1


def test_error_that_was_caught_before_the_exit_is_kept(tmp_path: Path) -> None:
    reply = tmp_path / "reply.json"
    script = "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(4)"
    done = run(tmp_path, script, **{ERROR_FILE: str(reply)})
    error = done.ring.error(ring.MAIN_ERROR)
    assert error is not None
    assert error.type == "ZeroDivisionError"
    assert done.ring.exit_code() == 4
    assert not reply.exists(), "torchrun's table is as under plain torchrun: the script chose an exit code"


@pytest.mark.parametrize(
    "script",
    [
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise SystemExit('no data') from None",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass\nraise SystemExit('no data')",
    ],
)
def test_exit_without_an_error_behind_it_is_kept_with_its_line(tmp_path: Path, script: str) -> None:
    error = run(tmp_path, script).ring.error(ring.MAIN_ERROR)
    assert error is not None
    assert (error.type, error.message) == ("SystemExit", "no data")
    assert "raise SystemExit('no data')" in error.traceback


def test_what_python_itself_says_of_a_wrong_target_is_kept_as_its_exit(tmp_path: Path) -> None:
    with StubLauncher(tmp_path) as launcher:
        done = launcher.run([str(tmp_path)], cwd=tmp_path, env=launcher.environment())
    error = done.ring.error(ring.MAIN_ERROR)
    assert error is not None
    assert error.type == "SystemExit"
    assert "can't find '__main__' module" in error.message
    assert done.exit_code == 1


def test_exit_without_a_failure_records_no_error(tmp_path: Path) -> None:
    script = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise SystemExit(0)"
    assert run(tmp_path, script).ring.error(ring.MAIN_ERROR) is None


def test_error_is_kept_though_a_signal_handler_of_the_script_raises_meanwhile(tmp_path: Path) -> None:
    """A DataLoader's handler does when a worker has died: in whatever the main thread executes at that moment."""
    done = run(
        tmp_path,
        "import os, signal\n"
        "def on_child(*_):\n    signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n    raise RuntimeError('worker died')\n"
        "class Loud(type):\n"
        "    @property\n    def __module__(cls):\n        os.kill(os.getpid(), signal.SIGUSR1)\n        return 'job'\n"
        "signal.signal(signal.SIGUSR1, on_child)\n"
        "raise Loud('NoData', (Exception,), {'__module__': 'job'})('shard 7')\n",
    )
    error = done.ring.error(ring.MAIN_ERROR)
    assert error is not None
    assert (error.type, error.message) == ("job.NoData", "shard 7")
    assert b"[TraceML]" not in done.stderr


def test_what_the_main_thread_goes_on_handling_is_kept_until_it_is_done() -> None:
    recorder = Recorder(new_ring())
    errors = ErrorRecorder(recorder, wall_minus_monotonic_ns=0, rank_dir=None, error_file=None)

    def look() -> RankError | None:
        other = threading.Thread(target=errors.note_handled)
        other.start()
        other.join()
        return recorder.reader.error(ring.MAIN_ERROR)

    try:
        raise ValueError("shard 7")
    except ValueError:
        kept = look()
        assert kept is not None
        assert (kept.kind, kept.type, kept.message) == ("handled", "ValueError", "shard 7")
        errors.record_main(KeyError("meanwhile"))
    last = look()
    assert last is not None
    assert (last.kind, last.type) == ("main", "KeyError")


def test_what_was_handled_and_done_is_forgotten() -> None:
    recorder = Recorder(new_ring())
    errors = ErrorRecorder(recorder, wall_minus_monotonic_ns=0, rank_dir=None, error_file=None)
    for _ in range(2):
        try:
            raise ValueError("shard 7")
        except ValueError:
            other = threading.Thread(target=errors.note_handled)
            other.start()
            other.join()
            assert recorder.reader.error(ring.MAIN_ERROR) is not None
        errors.note_handled()
        assert recorder.reader.error(ring.MAIN_ERROR) is None


THREAD = "import threading\nt = threading.Thread(target=lambda: {}['x']); t.start(); t.join()\n"


def test_error_of_a_thread_has_its_own_place(tmp_path: Path) -> None:
    reply = tmp_path / "reply.json"
    done = run(tmp_path, THREAD + "1 / 0", **{ERROR_FILE: str(reply)})
    in_thread, in_main = done.ring.error(ring.THREAD_ERROR), done.ring.error(ring.MAIN_ERROR)
    assert in_thread is not None
    assert in_main is not None
    assert (in_thread.kind, in_thread.type) == ("thread", "KeyError")
    assert in_main.type == "ZeroDivisionError"
    assert [one["kind"] for one in error_json(tmp_path)["errors"]] == ["thread", "main"]
    assert "ZeroDivisionError" in json.loads(reply.read_bytes())["message"]["message"]


def test_error_of_a_thread_alone_leaves_torchrun_nothing(tmp_path: Path) -> None:
    """A rank that goes on, and is stopped hours later as collateral, must not be torchrun's root cause."""
    reply = tmp_path / "reply.json"
    done = run(tmp_path, THREAD, **{ERROR_FILE: str(reply)})
    assert done.exit_code == 0
    assert done.ring.error(ring.THREAD_ERROR) is not None
    assert not reply.exists()


def test_exit_of_a_thread_is_no_error(tmp_path: Path) -> None:
    done = run(tmp_path, "import sys, threading\nt = threading.Thread(target=sys.exit); t.start(); t.join()")
    assert done.ring.error(ring.THREAD_ERROR) is None


def test_endless_error_is_cut_to_the_rings_room(tmp_path: Path) -> None:
    script = (
        "def f(n):\n    try:\n        raise ValueError('x' * 5000)\n"
        "    except ValueError:\n        if n: f(n - 1)\n        raise\nf(40)"
    )
    error = run(tmp_path, script).ring.error(ring.MAIN_ERROR)
    assert isinstance(error, RankError)
    assert "characters left out" in error.traceback
    assert error.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert error.traceback.endswith("xxxx\n"), "the end is worth more than the middle"


@pytest.mark.parametrize(
    "script",
    [
        "class E(Exception):\n    def __str__(self): raise TypeError('odd')\nraise E",
        "raise ValueError('\\udc80 and \\x00')",
        "import os; raise OSError(2, 'no', os.fsdecode(b'caf\\xe9'))",
        "def f(): f()\nf()",
        "raise ExceptionGroup('all', [ValueError(1), TypeError(2)])",
        "raise MemoryError",
    ],
)
def test_odd_errors_are_recorded_too(tmp_path: Path, script: str) -> None:
    done = run(tmp_path, script)
    assert done.ring.error(ring.MAIN_ERROR) is not None
    assert b"[TraceML]" not in done.stderr


def test_fatal_signal_prints_the_stack(tmp_path: Path) -> None:
    done = run(tmp_path, "import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()")
    assert done.exit_code == -11
    assert b"Fatal Python error: Segmentation fault" in done.stderr
    assert b"in crash" in done.stderr


def test_own_faulthandler_wins(tmp_path: Path) -> None:
    script = "import faulthandler, os\nfaulthandler.enable(open('own.log', 'w'))\nos.abort()"
    done = run(tmp_path, script)
    assert done.exit_code == -6
    assert done.stderr == b""
    assert "Fatal Python error: Aborted" in (tmp_path / "work" / "own.log").read_text()


def test_process_and_node_are_sampled_and_their_identity_kept(tmp_path: Path) -> None:
    done = run(tmp_path, "print('short')")
    first, data = done.ring.read(SAMPLE_STREAM, 0, 100)
    words = memoryview(data).cast("q")
    kinds = words[0::RECORD_WORDS].tolist()
    assert first == 0
    assert kinds[0] == PROCESS_SAMPLE
    assert NODE_SAMPLE in kinds, "local rank 0 samples the node too"
    cpu_ns, rss, threads, fds, peak, cpu_wait_ns = words[2:8].tolist()
    assert 10**6 < cpu_ns < 60 * 10**9
    assert 5 << 20 < rss <= peak < 1 << 30
    assert threads >= 1
    assert -1 <= cpu_wait_ns < 60 * 10**9
    assert fds == -1 or 3 <= fds < 100
    assert done.ring.word(ring.PID_WORD) > 0
    assert done.ring.word(ring.START_TICKS_WORD) > 0


def test_signals_are_left_to_the_scripts_threads(tmp_path: Path) -> None:
    script = (
        "import json, os, re\n"
        "blocked = {}\n"
        "for task in os.listdir('/proc/self/task'):\n"
        "    status = open(f'/proc/self/task/{task}/status').read()\n"
        "    blocked[task] = int(re.search(r'SigBlk:\\s*(\\w+)', status)[1], 16)\n"
        "print(json.dumps([blocked.pop(str(os.getpid())), *blocked.values()]))\n"
    )
    main, sender = json.loads(run(tmp_path, script).stdout)
    assert main == 0
    assert all(sender >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGPIPE))
    assert not sender >> (signal.SIGSEGV - 1) & 1


def test_children_leave_the_ring_alone(tmp_path: Path) -> None:
    script = (
        "import atexit, os, sys, threading\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()\n"
        "    raise ValueError('of the child')\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "os._exit(0)\n"
    )
    done = run(tmp_path, script)
    assert done.stdout == b"1\n"
    assert b"of the child" in done.stderr
    assert done.ring.error(ring.MAIN_ERROR) is None
    assert done.ring.error(ring.THREAD_ERROR) is None
    assert done.ring.exit_code() is None
    assert not done.ring.is_marker_sent()
    assert not (tmp_path / "ranks" / "rank_0" / "attempt_0" / "error.json").exists()


def test_forked_child_holds_none_of_our_descriptors(tmp_path: Path) -> None:
    script = (
        "import os\n"
        "if not os.fork():\n"
        "    print(sorted(int(n) for n in os.listdir('/proc/self/fd') if int(n) > 100), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    # The mapping of the ring keeps a duplicate before Python 3.13, which cannot be closed without closing the mapping.
    assert len(json.loads(run(tmp_path, script).stdout)) <= 1
