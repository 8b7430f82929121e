"""SIGKILL of a real rank at a random instant: every step that it had recorded is in the summary.

Each rank writes the number of its last recorded step into a file of its own, after the step: what stands there when it
is killed was committed before.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness.torchrun import RunFolder, RunningCommand, start_run
from tests.launch.launcher import launch, run_folder, workers

COUNTS = """
import os, time
import traceml_client

rank = os.environ["RANK"]
told = os.open(f"steps_{rank}", os.O_WRONLY | os.O_CREAT)
for step in range(1, 1_000_000):
    with traceml_client.trace_step():
        pass
    os.pwrite(told, b"%9d" % step, 0)
    if step % 200 == 0:
        time.sleep(0.001)
"""
TRAINS = """
import os, torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
told = os.open(f"steps_{dist.get_rank()}", os.O_WRONLY | os.O_CREAT)
for step in range(1, 1_000_000):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    os.pwrite(told, b"%9d" % step, 0)
"""


def committed(cwd: Path, rank: int) -> int:
    try:
        return int((cwd / f"steps_{rank}").read_bytes() or 0)
    except FileNotFoundError:
        return 0


def rank_pid(command: RunningCommand, rank: int) -> int:
    """By the variable that torchrun gives it."""
    for each in command.marked():
        try:
            environ = Path(f"/proc/{each.pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it ended since it was listed
            continue
        if f"RANK={rank}".encode() in environ and "traceml_client" in each.command:
            return each.pid
    raise LookupError(f"no rank {rank}")


def steps_of(folder: RunFolder) -> dict[int, dict[str, Any]]:
    return {section["rank"]: section["attempts"][-1] for section in folder.summary()["ranks"]}


def test_five_ranks_killed_at_random_instants(tmp_path: Path) -> None:
    num_ranks, choose = 5, random.Random(6)
    script = tmp_path / "script.py"
    script.write_text(COUNTS)
    at_kill = {}
    with launch(tmp_path, *workers(num_ranks, str(script), "--real"), num_local_ranks=num_ranks) as command:
        for rank in range(num_ranks):
            least = choose.randint(1, 3000)
            command.wait_for(lambda r=rank, n=least: committed(tmp_path, r) >= n, f"rank {rank} has made {least} steps")  # type: ignore[misc]
            command.signal(rank_pid(command, rank), signal.SIGKILL)
            at_kill[rank] = committed(tmp_path, rank)
        assert command.finish().exit_code == 1
    folder = run_folder(tmp_path)
    found = steps_of(folder)
    assert {rank: found[rank]["why"] for rank in found} == dict.fromkeys(range(num_ranks), "killed by SIGKILL")
    for rank in range(num_ranks):
        assert at_kill[rank] <= committed(tmp_path, rank) <= found[rank]["steps"] <= committed(tmp_path, rank) + 1
        assert found[rank]["records"]["dropped"] == 0
    assert folder.manifest()["telemetry"]["records"]["salvaged"] > 0


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_twenty_real_ranks_killed_at_random_instants(tmp_path: Path) -> None:
    choose = random.Random(20)
    for number in range(20):
        cwd = tmp_path / str(number)
        cwd.mkdir()
        script = cwd / "script.py"
        script.write_text(TRAINS)
        victim = choose.randrange(2)
        with start_run(
            ["--nproc-per-node", "2", script], cwd=cwd, environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
        ) as command:
            command.wait_for(lambda: committed(cwd, victim) >= 1, "it trains")  # noqa: B023
            until_s = time.monotonic() + choose.uniform(0, 2)
            command.wait_for(lambda: time.monotonic() >= until_s, "a random instant")  # noqa: B023
            command.signal(rank_pid(command, victim), signal.SIGKILL)
            assert command.finish().exit_code == 1
        found = steps_of(RunFolder(cwd / "logs" / "run"))
        for rank in range(2):
            assert committed(cwd, rank) <= found[rank]["steps"] <= committed(cwd, rank) + 1
            assert found[rank]["records"]["dropped"] == 0
        assert os.path.exists(cwd / "logs/run/failure_report.json")
