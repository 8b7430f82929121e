"""`traceml serve`, and ranks that plain python or plain torchrun started: `traceml_client.init()` finds the daemon."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.runner import free_ports
from tests.harness.processes import wait_until
from tests.harness.torchrun import TRACEML, RunFolder, RunningCommand, start, start_torchrun

SCRIPT = Path(__file__).parent / "scripts" / "steps_by_hand.py"
TOKEN = "a-token-for-direct-launches"

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(120)]


def serve(tmp_path: Path, port: int, *options: str, token: str = TOKEN) -> RunningCommand:
    arguments = ["--run-name=run", f"--logs-dir={tmp_path / 'logs'}", f"--aggregator-port={port}", *options]
    return start([TRACEML, "serve", *arguments], cwd=tmp_path, environ={"TRACEML_TOKEN": token}, name="serve")


def environ(port: int, token: str = TOKEN) -> dict[str, str]:
    return {"TRACEML_AGGREGATOR_PORT": str(port), "TRACEML_TOKEN": token}


def is_reported(run_folder: RunFolder) -> bool:
    manifest = run_folder.path / "manifest.json"
    return manifest.exists() and run_folder.manifest()["telemetry_status"] != "pending"


def train(argv: Sequence[str | Path], tmp_path: Path, port: int, token: str = TOKEN, **extra: str) -> bytes:
    with start([*argv], cwd=tmp_path, environ={**environ(port, token), **extra}, name="train") as training:
        done = training.finish()
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout


def test_plain_python_is_measured(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    folder = RunFolder(tmp_path / "logs" / "run")
    with serve(tmp_path, port, "--nproc-per-node=1") as daemon:
        assert train([sys.executable, SCRIPT], tmp_path, port) == b"trained no token\n"
        daemon.wait_for(lambda: is_reported(folder), "the report", within_s=20)
        daemon.signal(daemon.process.pid, signal.SIGTERM)
        assert daemon.finish(within_s=20).exit_code == 0
    manifest, summary = folder.manifest(), folder.summary()
    assert (manifest["status"], manifest["training"]["exit_code"]) == ("completed", None)
    assert manifest["telemetry_status"] == "complete"
    assert summary["ranks"][0]["attempts"][0]["steps"] == 25


def test_plain_torchrun_is_measured(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    folder = RunFolder(tmp_path / "logs" / "run")
    with serve(tmp_path, port, "--nproc-per-node=2") as daemon:
        with start_torchrun(
            ["--standalone", "--nproc-per-node=2", SCRIPT, "--group"], cwd=tmp_path, environ=environ(port), name="train"
        ) as training:
            assert training.finish().exit_code == 0
        daemon.wait_for(lambda: is_reported(folder), "the report", within_s=20)
    assert folder.manifest()["status"] == "completed"
    assert [entry["attempts"][0]["steps"] for entry in folder.summary()["ranks"]] == [25, 25]


def test_stranger_without_the_token_trains_and_leaves_no_trace(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    folder = RunFolder(tmp_path / "logs" / "run")
    with serve(tmp_path, port, "--nproc-per-node=1") as daemon:
        train([sys.executable, SCRIPT], tmp_path, port, token="guessed")
        train([sys.executable, SCRIPT], tmp_path, port)
        daemon.wait_for(lambda: is_reported(folder), "the report", within_s=20)
    summary = folder.summary()
    assert [len(entry["attempts"]) for entry in summary["ranks"]] == [1]
    assert summary["ranks"][0]["attempts"][0]["steps"] == 25


def test_daemon_that_is_stopped_before_all_ranks_came_says_interrupted(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    folder = RunFolder(tmp_path / "logs" / "run")
    with serve(tmp_path, port, "--nproc-per-node=2") as daemon:
        train([sys.executable, SCRIPT], tmp_path, port, RANK="0", WORLD_SIZE="2")
        wait_until(lambda: (folder.path / "manifest.json").exists(), "the run is open", within_s=10)
        daemon.signal(daemon.process.pid, signal.SIGTERM)
        assert daemon.finish(within_s=30).exit_code == 0
    assert folder.manifest()["status"] == "interrupted"
    assert [missing["rank"] for missing in folder.summary()["telemetry"]["ranks_missing"]] == [1]


def test_script_trains_where_no_daemon_is(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    assert train([sys.executable, SCRIPT], tmp_path, port) == b"trained no token\n"
