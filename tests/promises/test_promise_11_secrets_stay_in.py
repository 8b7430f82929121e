"""Promise 11: the token stands in no file, title, environment or message; what a run writes is its owner's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.daemon_process import serve_process
from tests.harness.sim_rank import SimRank
from tests.harness.torchrun import start_run
from tests.promises.attacked_run import TOKEN, Outcome, files_of, outcome

SCRIPT = """
import os, sys, time
print("environment", dict(os.environ))
print("arguments", open("/proc/self/cmdline").read())
print("parent", open(f"/proc/{os.getppid()}/environ").read(), open(f"/proc/{os.getppid()}/cmdline").read())
sys.exit(3)
"""


def test_a_daemon_keeps_it_also_from_those_who_guess() -> None:
    for attacked in (outcome("finished", None), outcome("finished", "small")):
        check(attacked)


def check(attacked: Outcome) -> None:
    assert TOKEN.encode() not in attacked.described
    assert [name for name, (_, content) in attacked.files.items() if TOKEN.encode() in content] == []
    wrong = {name: mode for name, (mode, _) in attacked.files.items() if mode & 0o077}
    assert wrong == {}


async def test_a_serving_daemon_keeps_it_too(tmp_path: Path) -> None:
    logs_dir = tmp_path / "logs"
    async with serve_process(logs_dir, "--aggregator-port", "0", "--run-name", "r", TRACEML_TOKEN=TOKEN) as daemon:
        rank = SimRank(port=daemon.port, run="r", token=TOKEN)
        await rank.join()
        await rank.finish()
        await rank.close()
        title = title_of(daemon.process.pid)
        daemon.process.terminate()
        assert await daemon.exit_code() == 0
        assert daemon.process.stderr is not None
        assert TOKEN.encode() not in title + daemon.process.stderr.read()
    files = files_of(logs_dir)
    assert [name for name, (mode, content) in files.items() if mode & 0o077 or TOKEN.encode() in content] == []


def title_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.torch
@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_a_launch_that_fails_shows_it_nowhere(tmp_path: Path) -> None:
    script = tmp_path / "tells_all.py"
    script.write_text(SCRIPT)
    with start_run([script], cwd=tmp_path, environ={"TRACEML_TOKEN": TOKEN}) as command:
        finished = command.finish()
    assert finished.exit_code == 1
    assert b"environment" in finished.stdout
    assert TOKEN.encode() not in finished.stdout + finished.stderr
    files = files_of(tmp_path / "logs")
    assert "run/failure_report.json" in files
    assert [name for name, (mode, content) in files.items() if mode & 0o077 or TOKEN.encode() in content] == []
