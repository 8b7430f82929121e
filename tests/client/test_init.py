"""`init` under plain Python: what a script that was started without a launcher sends, and when it is left alone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.stub_daemon import Behaviour, StubDaemon
from tests.harness.stub_launcher import DEADLINE_S
from tests.harness.torchrun import clean_environment
from traceml_client.protocol.environ import AGGREGATOR_PORT, ERROR_FILE, RUN_NAME, TOKEN, TRACE_MAX_STEPS
from traceml_client.protocol.messages import BAD_TOKEN, NUMBER_ME

STEPS = """
import traceml_client
traceml_client.init()
for _ in range(20):
    with traceml_client.trace_step():
        pass
"""


def run(folder: Path, script: str, port: int, **environment: str) -> subprocess.CompletedProcess[bytes]:
    (folder / "main.py").write_text(script)
    return subprocess.run(
        [sys.executable, "main.py"],
        cwd=folder,
        env=clean_environment(**{AGGREGATOR_PORT: str(port), **environment}),
        capture_output=True,
        timeout=DEADLINE_S,
    )


def test_every_step_arrives_and_the_marker(tmp_path: Path) -> None:
    with StubDaemon() as daemon:
        done = run(tmp_path, STEPS, daemon.port, **{RUN_NAME: "mine"})
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    (hello,) = daemon.heard.hellos
    assert (hello.run, hello.rank, hello.world_size) == ("mine", 0, 1)
    assert (hello.node_index, hello.attempt) == (NUMBER_ME, NUMBER_ME)
    assert sorted(daemon.heard.records[0]) == list(range(20))
    (marker,) = daemon.heard.markers
    assert (marker.exit_code, marker.error) == (None, None)
    assert any("salvage: unavailable" in note for note in marker.notes)


def test_place_of_a_torchrun_rank(tmp_path: Path) -> None:
    places = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
    with StubDaemon() as daemon:
        run(tmp_path, STEPS, daemon.port, **places, TORCHELASTIC_RESTART_COUNT="2")
    (hello,) = daemon.heard.hellos
    assert (hello.rank, hello.local_rank, hello.world_size, hello.local_world_size) == (5, 1, 8, 4)
    assert hello.torch_restart_count == 2


def test_limit_of_steps(tmp_path: Path) -> None:
    with StubDaemon() as daemon:
        run(tmp_path, STEPS, daemon.port, **{TRACE_MAX_STEPS: "7"})
    assert len(daemon.heard.records[0]) == 7


def test_token_is_proven_and_taken_out_of_the_environment(tmp_path: Path) -> None:
    script = STEPS + "import os; print('hush' in str(os.environ))"
    with StubDaemon(Behaviour(token="hush")) as daemon:
        done = run(tmp_path, script, daemon.port, **{TOKEN: "hush"})
    assert done.stdout == b"False\n"
    assert len(daemon.heard.markers) == 1


def test_refusal_is_one_line_and_training_goes_on(tmp_path: Path) -> None:
    with StubDaemon(Behaviour(refusal=(BAD_TOKEN, "not proven"))) as daemon:
        done = run(tmp_path, STEPS + "print('trained')", daemon.port)
    assert (done.returncode, done.stdout) == (0, b"trained\n")
    assert done.stderr == b"[TraceML] telemetry: the aggregator refused us: bad_token: not proven (training goes on)\n"


def test_nobody_listens_is_one_line_and_no_long_wait(tmp_path: Path) -> None:
    with StubDaemon() as daemon:
        port = daemon.port
    started_s = time.monotonic()
    done = run(tmp_path, STEPS, port)
    assert time.monotonic() - started_s < DEADLINE_S / 2
    assert done.returncode == 0
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"[TraceML] no aggregator at 127.0.0.1:{port}: Connection refused")


@pytest.mark.parametrize(
    "before",
    ["", "import sys; sys.excepthook = lambda *a: print('own hook')\n"],
    ids=["no hook of its own", "a hook that replaces ours"],
)
def test_uncaught_error_is_told_and_displayed(tmp_path: Path, before: str) -> None:
    reply = tmp_path / "reply.json"
    with StubDaemon() as daemon:
        done = run(tmp_path, STEPS + before + "1 / 0", daemon.port, **{ERROR_FILE: str(reply)})
    assert done.returncode == 1
    assert done.stdout == (b"own hook\n" if before else b"")
    assert done.stderr.endswith(b"" if before else b"ZeroDivisionError: division by zero\n")
    (marker,) = daemon.heard.markers
    assert marker.exit_code == 1
    assert marker.error is not None
    assert marker.error.type == "ZeroDivisionError"
    assert "ZeroDivisionError" in reply.read_text()


def test_stop_ends_it_once_and_for_all(tmp_path: Path) -> None:
    script = STEPS + "traceml_client.stop(); traceml_client.stop(); traceml_client.init()\n" + STEPS + "1 / 0"
    with StubDaemon() as daemon:
        run(tmp_path, script, daemon.port)
    assert len(daemon.heard.records[0]) == 20
    assert len(daemon.heard.hellos) == 1
    assert [marker.error for marker in daemon.heard.markers] == [None]


def test_exit_handlers_of_the_script_run_before_the_end_is_told(tmp_path: Path) -> None:
    script = STEPS + "import atexit\n@atexit.register\ndef f():\n    with traceml_client.trace_step(): pass\n"
    with StubDaemon() as daemon:
        run(tmp_path, script, daemon.port)
    assert len(daemon.heard.records[0]) == 21


def test_children_are_not_the_rank(tmp_path: Path) -> None:
    script = (
        "import multiprocessing as m, os, subprocess, sys, traceml_client\n"
        "traceml_client.init()\n"
        "def f(x):\n"
        "    traceml_client.init()\n"
        "    with traceml_client.trace_step(): return x\n"
        "if __name__ == '__main__' and len(sys.argv) == 1:\n"
        "    for how in ('spawn', 'forkserver', 'fork'):\n"
        "        with m.get_context(how).Pool(1) as pool: print(pool.map(f, [how]))\n"
        "    subprocess.run([sys.executable, __file__, 'again'], check=True)\n"
    )
    with StubDaemon() as daemon:
        done = run(tmp_path, script, daemon.port)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"['spawn']\n['forkserver']\n['fork']\n"
    assert len(daemon.heard.hellos) == 1
    assert daemon.heard.records[0] == {}
    assert len(daemon.heard.markers) == 1


def test_number_that_is_none_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, STEPS + "print('trained')", 1, RANK="two")
    assert (done.returncode, done.stdout) == (0, b"trained\n")
    assert done.stderr == b"[TraceML] no telemetry: RANK='two' is not a whole number (training goes on)\n"


def test_daemon_that_is_stopped_costs_the_end_its_budget_and_no_more(tmp_path: Path) -> None:
    script = STEPS + "import time; time.sleep(0.3)\n"
    with StubDaemon(Behaviour(is_reading=False)) as daemon:
        started_s = time.monotonic()
        done = run(tmp_path, script, daemon.port)
        assert time.monotonic() - started_s < DEADLINE_S / 2
        daemon.set(is_reading=True)
    assert (done.returncode, done.stderr) == (0, b"")
