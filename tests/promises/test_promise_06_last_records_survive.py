"""Promise 6: a rank that is killed has already handed over every step that it completed.

The real launcher and the real client around a stand-in for torchrun; with the real one: tests/e2e/test_faults.py.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launcher import launch, run_folder, workers

NUM_COMPLETED = 49
DIES = """
import os, signal, traceml_client

rank = int(os.environ["RANK"])
for number in range(1, 60):
    with traceml_client.trace_step():
        if rank == 1 and number == 50:
            {death}
"""
DEATHS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL); signal.pause()",
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "SIGABRT": "os.abort()",
    "OOM": "open({tasks!r}, 'w').write(str(os.getpid())); hoard = [bytes([1]) * (1 << 20) for _ in range(1024)]",
}
OOM_LIMIT_BYTES = 256 << 20

RUNS = """
import itertools, mmap, os, struct, traceml_client

# What no telemetry has a hand in: how many steps this rank has made, for whoever looks after its death.
count = mmap.mmap(os.open("made-%s" % os.environ["RANK"], os.O_RDWR), 8)
for number in itertools.count(1):
    with traceml_client.trace_step():
        pass
    count[:8] = struct.pack("<q", number)
"""


@contextlib.contextmanager
def small_memory_group() -> Iterator[Path]:
    """The tasks file of a control group with little memory; skips where none can be made."""
    group = Path(f"/sys/fs/cgroup/memory/traceml-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(OOM_LIMIT_BYTES))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip("no memory control group can be made here")
    try:
        yield group / "tasks"
    finally:
        group.rmdir()


@pytest.mark.parametrize("death", DEATHS)
def test_every_completed_step_is_in_the_summary(tmp_path: Path, death: str) -> None:
    with contextlib.ExitStack() as stack:
        tasks = stack.enter_context(small_memory_group()) if death == "OOM" else Path()
        script = tmp_path / "dies.py"
        script.write_text(DIES.format(death=DEATHS[death].format(tasks=str(tasks))))
        command = stack.enter_context(launch(tmp_path, *workers(2, str(script), "--real"), num_local_ranks=2))
        assert command.finish(within_s=30).exit_code == 1
    summary = run_folder(tmp_path).summary()
    (attempt,) = summary["ranks"][1]["attempts"]
    assert (attempt["steps"], attempt["records"]["dropped"]) == (NUM_COMPLETED, 0)
    failure = run_folder(tmp_path).failure()
    assert failure["initiating_rank"] == 1
    assert failure["signal"] == ("SIGKILL" if death == "OOM" else death)


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_a_random_instant_loses_no_step(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, seed)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_twenty_kills_at_random_instants_lose_no_step(tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kill_at_random(folder, 1000 + seed)


def kill_at_random(folder: Path, seed: int) -> None:
    """One rank steps as fast as it can and is killed from outside, after a random number of steps."""
    made = folder / "made-0"
    made.write_bytes(bytes(8))
    script = folder / "runs.py"
    script.write_text(RUNS)
    after = random.Random(seed).randrange(100, 60_000)
    with launch(folder, *workers(1, str(script), "--real"), num_local_ranks=1) as command:
        command.wait_for(lambda: num_made(made) >= after, f"{after} steps", within_s=60)
        (rank,) = [found.pid for found in command.marked() if re.search(r"traceml_client\.worker", found.command)]
        command.signal(rank, signal.SIGKILL)
        command.finish(within_s=30)
    (attempt,) = run_folder(folder).summary()["ranks"][0]["attempts"]
    records = attempt["records"]
    assert records["received"] == records["stored"] + records["salvaged"] == attempt["steps"]
    # The kill may fall between the record of a step and our own count of it.
    assert attempt["last_step"] in (num_made(made), num_made(made) + 1)
    assert attempt["steps"] + records["dropped"] == attempt["last_step"]


def num_made(path: Path) -> int:
    (number,) = struct.unpack("<q", path.read_bytes())
    return int(number)
