"""SIGKILL of the daemon at any instant: every acknowledged record is there once, every other one is sent again.

The run is finalized by the last daemon as if there had been one only.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness.daemon_process import launch_order
from tests.harness.kept_daemon import KeptDaemon, kept_daemon, kill_at
from tests.harness.sim_job import SimJob
from tests.launch.launcher import child_pid, launch, run_folder, workers
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import read_manifest
from traceml_daemon.run.run_status import read_status

STEPS_THEN_WAITS = """
import os, time
import traceml_client

def steps(count):
    for _ in range(count):
        with traceml_client.trace_step():
            pass

steps(2000)
print("half", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
steps(1000)
"""


async def lose_daemons(
    run_dir: Path, *, num_kills: int, num_ranks: int, num_steps: int, seed: int, num_late_kills: int = 0
) -> KeptDaemon:
    """A job whose daemon is killed that often at random instants; the late kills come while it finalizes."""
    choose = random.Random(seed)
    order = launch_order(run_dir, nproc_per_node=num_ranks)
    async with kept_daemon(order) as kept:
        job = SimJob(port=kept.port, num_ranks=num_ranks, num_steps=num_steps, seed=seed)
        total = num_ranks * num_steps
        marks = [choose.randrange(total) for _ in range(num_kills)] + [total + 1] * num_late_kills
        longest_s = 0.03 if num_late_kills else 0.06
        running = asyncio.ensure_future(job.run_to_its_end())
        killing = asyncio.ensure_future(
            kill_at(
                kept,
                lambda: job.num_acked + is_ending(run_dir),
                marks,
                lambda: choose.uniform(0, longest_s),
                is_over=running.done,
            )
        )
        try:
            finalized = await running
            await killing
        finally:
            running.cancel()
            killing.cancel()
            await asyncio.gather(running, killing, return_exceptions=True)
        assert (finalized.telemetry_status, finalized.telemetry_reason) == ("complete", None)
        try:
            assert await kept.daemon.exit_code(within_s=5) == 0
        except subprocess.TimeoutExpired:  # its predecessor was killed between its last file and its exit
            await job.say_end()
            assert await kept.daemon.exit_code() == 0
    assert set(kept.exit_codes) <= {-signal.SIGKILL}
    assert num_kills <= kept.num_kills <= num_kills + num_late_kills
    return kept


def is_ending(run_dir: Path) -> bool:
    """Its daemon has heard that training is over."""
    try:
        return read_manifest(run_dir).status != "running"
    except StoreError:
        return False


def check_each_record_once(run_dir: Path, *, num_ranks: int, num_steps: int) -> None:
    """By the rows themselves and by what manifest and summary say of them."""
    found = read_manifest(run_dir)
    records = found.telemetry.records
    assert (found.status, found.telemetry_status, found.training.exit_code) == ("completed", "complete", 0)
    assert (records.received, records.stored, records.dropped) == (num_ranks * num_steps, num_ranks * num_steps, 0)
    assert found.telemetry.ranks_finished == tuple(range(num_ranks))
    assert found.lease is None
    with contextlib.closing(sqlite3.connect(run_dir / "telemetry.sqlite")) as database:
        spans = database.execute(
            "SELECT rank, first_seq, first_seq + count FROM chunk JOIN incarnation ON incarnation.id = incarnation_id"
            " WHERE stream = 0 ORDER BY rank, first_seq"
        ).fetchall()
        (wrong,) = database.execute("SELECT COUNT(*) FROM incarnation WHERE attempt > 0").fetchone()
    assert wrong == 0, "a daemon that was started again made a new attempt"
    for rank in range(num_ranks):
        ends = [0, *(end for owner, _, end in spans if owner == rank)]
        assert [first for owner, first, _ in spans if owner == rank] == ends[:-1], "a gap, or a record twice"
        assert ends[-1] == num_steps


async def test_five_kills_at_random_instants_lose_and_double_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    await lose_daemons(run_dir, num_kills=5, num_ranks=4, num_steps=5_000, seed=7)
    check_each_record_once(run_dir, num_ranks=4, num_steps=5_000)


async def test_kills_that_a_run_is_too_short_for_hold_nobody_up(tmp_path: Path) -> None:
    async with kept_daemon(launch_order(tmp_path / "run", nproc_per_node=1)) as kept:
        job = SimJob(port=kept.port, num_ranks=1, num_steps=100, seed=1)
        running = asyncio.ensure_future(job.run_to_its_end())
        await kill_at(kept, lambda: job.num_acked, [101], lambda: 0.0, is_over=running.done)
        assert (await running).telemetry_status == "complete"
        assert kept.num_kills == 0


async def test_kills_while_the_run_is_finalized_do_not_either(tmp_path: Path) -> None:
    num_kills = 0
    for seed in range(3):
        run_dir = tmp_path / f"run_{seed}"
        kept = await lose_daemons(run_dir, num_kills=0, num_ranks=2, num_steps=500, seed=seed, num_late_kills=3)
        check_each_record_once(run_dir, num_ranks=2, num_steps=500)
        num_kills += kept.num_kills
    assert num_kills > 0, "a finalization takes longer than the pause before a kill"


def num_stored(cwd: Path) -> int:
    """As `traceml status` says."""
    return read_status(run_folder(cwd).path, now_ns=time.time_ns()).telemetry.records.stored


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_launcher_starts_its_own_daemon_again_and_its_ranks_go_on(tmp_path: Path, number: int) -> None:
    """The client's own worker in both ranks, without torch."""
    script = tmp_path / "script.py"
    script.write_text(STEPS_THEN_WAITS)
    argv = workers(2, str(script), "--real")
    # any port: the usual one may go to another test's run before the new daemon has it again
    with launch(tmp_path, *argv, num_local_ranks=2, aggregator_port=0) as command:
        command.wait_for(lambda: command.stdout().count(b"half") == 2, "both are half way")
        command.signal(child_pid(command, "traceml_daemon supervise"), number)
        command.wait_for(lambda: b"started again (1 of 3)" in command.stderr(), "it is said", within_s=30.0)
        command.wait_for(lambda: num_stored(tmp_path) == 4000, "the ranks are back and have sent again")
        (tmp_path / "go").touch()
        finished = command.finish()
        assert command.marked() == []
    manifest = run_folder(tmp_path).manifest()
    assert (finished.exit_code, manifest["status"], manifest["aggregator_exit_code"]) == (0, "completed", 0)
    assert (manifest["telemetry_status"], manifest["telemetry_reason"]) == ("complete", None)
    assert manifest["telemetry"]["records"]["stored"] == 6000
    assert manifest["telemetry"]["frames_rejected"] == 0
    assert [
        line for line in finished.stderr.splitlines() if b"the aggregator" in line and b"Telemetry" not in line
    ] == [line for line in finished.stderr.splitlines() if b"started again (1 of 3), training goes on" in line]


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_fifty_kills_over_one_run_of_eight_ranks(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    await lose_daemons(run_dir, num_kills=50, num_ranks=8, num_steps=20_000, seed=50)
    check_each_record_once(run_dir, num_ranks=8, num_steps=20_000)
