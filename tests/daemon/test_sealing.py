"""The end of a run when something about it goes wrong: the manifest is written, in time, and says so."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from traceml_client.protocol.launch import layout_rank_dir
from traceml_client.protocol.node import RankError

TOKEN = "a secret"
ERROR = RankError("main", "ValueError", "no", "Traceback ...", 1, 3, "forward")


async def failed_training(daemon: RunningDaemon) -> SimNode:
    node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
    await node.join()
    rank = await node.start_rank(SimRank(port=daemon.port))
    await rank.join()
    await rank.send_steps(10)
    await rank.fail(ERROR)
    await rank.finish(exit_code=1, error=ERROR)
    await rank.close()
    await node.end(node.report(rank_end(rank, exit_code=1), exit_code=1))
    return node


async def test_a_failed_run_tells_its_launcher_who_failed_and_why(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1)) as daemon:
        node = await failed_training(daemon)
        finalized = await node.wait_finalized()
        manifest = await daemon.finalized()
        report = daemon.json("failure_report.json")
        await node.close()

    assert (manifest.status, manifest.telemetry_status) == ("failed", "complete")
    assert (report["category"], report["initiating_rank"]) == ("python_exception", 0)
    assert 1 <= len(finalized.verdict_lines) <= 6
    assert manifest.training.failure_sentence


async def test_a_report_that_cannot_be_written_is_an_error_of_its_own(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1)) as daemon:
        (run_dir / "final_summary.json").mkdir()
        node = await failed_training(daemon)
        finalized = await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()

    assert (manifest.status, manifest.training.exit_code) == ("failed", 1)
    assert (finalized.telemetry_status, finalized.telemetry_reason) == ("failed", "finalization_error")
    assert "final_summary.json" in daemon.json(manifest.artifacts["finalization_error"])["error"]


async def test_without_a_database_too_an_error_in_what_is_told_keeps_nobody_from_being_told(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, has_history=False)) as daemon:
        store, told = daemon.session.store, asyncio.Event()
        store.when_committed(lambda: {}["nothing"])
        store.when_committed(told.set)
        await told.wait()
        assert store.faults == ("a fault of TraceML itself, 1x: what a commit is told to: 'nothing'",)


async def test_what_goes_wrong_in_us_is_counted_where_a_person_looks(run_dir: Path) -> None:
    """A page that cannot be written, streams that cannot be compared, errors behind a commit and in a callback."""
    attempt_dir = run_dir / layout_rank_dir(0, 0, 0)
    attempt_dir.mkdir(parents=True)
    (attempt_dir / "stderr.log").symlink_to("/proc/self/mem")  # a regular file, and reading it is an I/O error
    async with run_daemon(run_config(run_dir, nproc_per_node=1, has_html=True)) as daemon:
        (run_dir / "final_summary.html").mkdir()
        for _ in range(2):
            daemon.session.store.when_committed(lambda: {}["nothing"])
        asyncio.get_running_loop().call_soon(lambda: {}["lost"])
        node = await failed_training(daemon)
        await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()

    callback = "a fault of TraceML itself, 1x: a callback of the event loop: 'lost'"
    bookkeeping = "a fault of TraceML itself, 2x: what a commit is told to: 'nothing'"
    streams = "the ranks' streams could not be compared: Input/output error"
    page = "final_summary.html could not be written: Is a directory"
    warnings = daemon.json(manifest.artifacts["finalization_warning"])["warnings"]
    for text in (callback, bookkeeping, streams, page):
        assert len([warning for warning in warnings if warning.startswith(text)]) == 1, (text, warnings)
    summary = daemon.json("final_summary.json")["warnings"]
    assert sorted(summary) == sorted(one for one in warnings if not one.startswith(page))
    assert (manifest.telemetry_status, manifest.telemetry_reason) == ("complete", None)
    assert daemon.json("failure_report.json")["category"] == "python_exception"


async def test_a_report_that_hangs_is_left_behind_at_the_timeout(run_dir: Path) -> None:
    """A pipe that nobody writes stands in for a dead network file system: who opens it waits for ever."""
    stderr_log = run_dir / layout_rank_dir(0, 0, 0) / "stderr.log"
    stderr_log.parent.mkdir(parents=True)
    os.mkfifo(stderr_log)
    started_s = time.monotonic()
    async with run_daemon(run_config(run_dir, nproc_per_node=1, finalize_timeout_s=3.0)) as daemon:
        node = await failed_training(daemon)
        finalized = await node.wait_finalized()
        manifest = await daemon.finalized()
        await node.close()
        elapsed_s = time.monotonic() - started_s
        await asyncio.to_thread(os.close, await asyncio.to_thread(os.open, stderr_log, os.O_WRONLY))

    assert elapsed_s < 10
    assert (finalized.telemetry_status, finalized.telemetry_reason) == ("failed", "finalize_timeout")
    assert (manifest.status, manifest.lifecycle.finalized_at is not None) == ("failed", True)
    assert daemon.json(manifest.artifacts["finalization_error"])["error"] == "the reports were not written in time"


async def test_missing_ranks_are_warned_of_in_a_file(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2)
        await node.join()
        rank = await node.start_rank(SimRank(port=daemon.port, world_size=2))
        await rank.join()
        await rank.finish()
        await rank.close()
        await node.end(node.report(rank_end(rank), exit_code=1))
        manifest = await daemon.finalized()
        await node.close()

    warning = daemon.json(manifest.artifacts["finalization_warning"])
    assert (warning["reason"], warning["telemetry_reason"]) == ("ranks_missing", "finalization_warning")
    assert [missing["rank"] for missing in warning["ranks_missing"]] == [1]
    assert warning["ranks_finished"] == [0]


async def test_a_daemon_that_is_closed_in_the_middle_leaves_what_is_stored(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(10)
        await rank.wait_acked()
        await rank.close()

    assert daemon.manifest().status == "running"
    assert (run_dir / "telemetry.sqlite").stat().st_size > 0
