"""A real torchrun whose daemon is killed, and one whose workers are restarted: the report is as if, or tells of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness.torchrun import RunFolder, start_run

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(180)]

TRAINS = """
import os, time, torch
import torch.distributed as dist

restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
# Both attempts share torchrun's store, and the second would read the addresses of the first.
store, rank, world_size = next(dist.rendezvous("env://"))
store = dist.PrefixStore(f"attempt {restart}", store)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 41):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 20:
        print("half", flush=True)
        if os.environ.get("FAILS") and restart == 0 and dist.get_rank() == 1:
            raise ValueError("no data in shard 7")
        while os.environ.get("WAITS") and not os.path.exists("go"):
            time.sleep(0.02)
dist.destroy_process_group()
"""


def test_a_killed_daemon_costs_a_real_run_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINS)
    with start_run(["--nproc-per-node", "2", script], cwd=tmp_path, environ={"WAITS": "1"}) as command:
        command.wait_for(lambda: command.stdout().count(b"half") == 2, "both are half way")
        (daemon,) = command.find("traceml_daemon supervise")
        command.signal(daemon.pid, signal.SIGKILL)
        command.wait_for(lambda: b"started again (1 of 3)" in command.stderr(), "it is said")
        (tmp_path / "go").touch()
        finished = command.finish()
        assert command.marked() == []
    folder = RunFolder(tmp_path / "logs" / "run")
    manifest = folder.manifest()
    assert (finished.exit_code, manifest["status"], manifest["aggregator_exit_code"]) == (0, "completed", 0)
    assert (manifest["telemetry_status"], manifest["telemetry_reason"]) == ("complete", None)
    records = manifest["telemetry"]["records"]
    assert (records["stored"] + records["salvaged"], records["dropped"]) == (80, 0)
    assert [section["attempts"][0]["steps"] for section in folder.summary()["ranks"]] == [40, 40]


def test_workers_that_torchrun_restarts_are_attempts_with_their_ends(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINS)
    options = ["--nproc-per-node", "2", "--max-restarts", "1"]
    with start_run([*options, script], cwd=tmp_path, environ={"FAILS": "1"}) as command:
        finished = command.finish()
    folder = RunFolder(tmp_path / "logs" / "run")
    manifest, summary = folder.manifest(), folder.summary()
    attempts = {section["rank"]: section["attempts"] for section in summary["ranks"]}
    assert (finished.exit_code, manifest["status"], manifest["training"]["attempts"]) == (0, "completed", 2)
    assert [(each["attempt"], each["torch_restart_count"]) for each in attempts[1]] == [(0, 0), (1, 1)]
    assert [each["steps"] for each in attempts[1]] == [20, 40]
    assert attempts[1][0]["why"] == "exit code 1 after ValueError: no data in shard 7"
    assert attempts[0][1]["steps"] == 40
    assert attempts[0][0]["why"] is not None
    assert [report["initiating_rank"] for report in summary["failure_history"]] == [1]
    assert summary["failure"] is None
    assert manifest["telemetry"]["ranks_finished"] == [0, 1]
