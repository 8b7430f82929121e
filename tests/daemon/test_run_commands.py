"""`traceml status`, `view` and `prune` on real run folders: live, finished, left behind, damaged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import msgspec
import pytest

from tests.harness.daemon import RunningDaemon, run_config, run_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from traceml_client.protocol.manifest import Lease, LeaseHolder, read_manifest, rfc3339, write_manifest
from traceml_daemon.cli import look_at_runs
from traceml_daemon.report import json_schema

TOKEN = "a secret"


class Shown(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Show = Callable[..., Any]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Runs `traceml WORDS` beside the loop."""

    async def run(*words: str | Path) -> Shown:
        capsys.readouterr()
        code = await asyncio.to_thread(look_at_runs, [str(word) for word in words])
        return Shown(code, *capsys.readouterr())

    return run


def recent() -> int:
    """Of a host on which step 1 ended just now; see `step_columns`."""
    return time.time_ns() - 1_000_000_000


@contextlib.asynccontextmanager
async def live_run(run_dir: Path, **changes: Any) -> AsyncIterator[tuple[RunningDaemon, SimNode, SimRank]]:
    """One rank of two has joined and sent ten steps; a rank that is left is lost."""
    async with run_daemon(run_config(run_dir, **changes)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN, local_world_size=2)
        await node.join()
        await node.start_training()
        rank = SimRank(port=daemon.port, world_size=2, wall_minus_monotonic_ns=recent())
        await node.start_rank(rank)
        await rank.join()
        await rank.send_steps(10)
        await rank.wait_acked()
        yield daemon, node, rank
        await rank.close()
        await node.close()


async def finish(daemon: RunningDaemon, node: SimNode, rank: SimRank, *, exit_code: int = 0) -> None:
    await rank.finish(exit_code=exit_code)
    other = await node.start_rank(SimRank(port=daemon.port, rank=1, world_size=2))
    await other.join()
    await other.finish()
    await other.close()
    ends = [rank_end(rank, exit_code=exit_code), rank_end(other)]
    await node.end(node.report(*ends, exit_code=exit_code))
    await node.wait_finalized()
    await daemon.finalized()


def set_lease(run_dir: Path, *, left_s: float, holder: LeaseHolder | None = None) -> None:
    """As a holder that is gone would have left it."""
    found = read_manifest(run_dir)
    holder = holder or LeaseHolder(host="elsewhere", pid=1, start_ticks=1)
    lease = Lease(holder=holder, expires_at=rfc3339(time.time_ns() + int(left_s * 1e9)))
    write_manifest(run_dir, msgspec.structs.replace(found, lease=lease))


async def test_a_live_run_shows_its_ranks(run_dir: Path, show: Show) -> None:
    async with live_run(run_dir) as (_, _, _):
        shown = await show("status", run_dir, "--json")
        text = await show("status", "--logs-dir", run_dir.parent)
    found = shown.json()
    jsonschema.validate(found, json_schema.document("status"))
    assert (shown.code, found["status"], found["telemetry"]["status"]) == (0, "running", "pending")
    assert found["telemetry"]["records"]["stored"] == 10
    assert [(rank["rank"], rank["state"], rank["last_step"]) for rank in found["ranks"]] == [
        (0, "active", 10),
        (1, "expected", 0),
    ]
    assert found["ranks"][0]["last_seen_s"] < 10
    assert found["ranks"][1]["last_seen_s"] is None
    assert "Run test-run: running" in text.out
    assert "Ranks: 2 expected, 0 finished" in text.out


@pytest.mark.parametrize(("exit_code", "status"), [(0, "completed"), (3, "failed")])
async def test_a_finished_run_is_told_by_the_exit_code(run_dir: Path, show: Show, exit_code: int, status: str) -> None:
    async with live_run(run_dir) as (daemon, node, rank):
        await finish(daemon, node, rank, exit_code=exit_code)
    shown = await show("status", "test-run", "--logs-dir", run_dir.parent, "--json")
    found = shown.json()
    assert (shown.code, found["status"]) == (int(exit_code != 0), status)
    assert found["training"]["exit_code"] == exit_code
    assert [rank["state"] for rank in found["ranks"]] == ["finished", "finished"]
    assert found["ranks"][0]["last_step"] == 10


async def test_ranks_of_a_run_without_telemetry_are_not_lost(run_dir: Path, show: Show) -> None:
    async with live_run(run_dir) as (daemon, node, rank):
        await finish(daemon, node, rank)
    found = read_manifest(run_dir)
    (run_dir / "final_summary.json").unlink()
    (run_dir / "telemetry.sqlite").unlink()
    unheard = msgspec.structs.replace(found.telemetry, ranks_finished=())
    write_manifest(run_dir, msgspec.structs.replace(found, telemetry_status="unavailable", telemetry=unheard))
    shown = await show("status", run_dir, "--json")
    assert [rank["state"] for rank in shown.json()["ranks"]] == ["finished", "finished"]


async def test_a_completed_run_says_that_nothing_failed(run_dir: Path, show: Show) -> None:
    async with live_run(run_dir) as (daemon, node, rank):
        await finish(daemon, node, rank)
    found = (await show("diagnose", run_dir, "--json")).json()
    assert (found["category"], found["confidence"], found["exit_code"], found["missing"]) == ("ok", "confirmed", 0, [])
    (quoted,) = found["evidence"]
    lines = (run_dir / quoted["file"]).read_text().splitlines()
    assert quoted["text"] in lines[quoted["line"] - 1]
    shown = await show("verify", run_dir)
    assert (shown.code, shown.err) == (2, "traceml: run test-run is completed: there is no failure to verify\n")


ALONE = """\
Traceback (most recent call last):
  File "/opt/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.DistNetworkError: The client socket has timed out after 8000ms while trying to connect to (n0, 29500).
"""


@pytest.mark.parametrize("is_name", [True, False], ids=["by its name", "by its folder"])
async def test_a_node_whose_owner_never_came_is_diagnosed_from_its_streams(
    tmp_path: Path, show: Show, is_name: bool
) -> None:
    stderr = tmp_path / "job" / "nodes" / "node_1" / "training.stderr.log"
    stderr.parent.mkdir(parents=True)
    stderr.write_text(ALONE)
    shown = await show("diagnose", "job" if is_name else tmp_path / "job", "--logs-dir", tmp_path, "--json")
    found = shown.json()
    assert (shown.code, found["category"], found["initiating_rank"]) == (0, "rendezvous_failed", None)
    assert found["evidence"][0]["file"] == str(stderr)


async def test_a_run_that_nobody_holds_is_abandoned_and_view_makes_its_report(run_dir: Path, show: Show) -> None:
    async with live_run(run_dir):
        pass
    set_lease(run_dir, left_s=-1)
    shown = await show("status", run_dir / "manifest.json", "--json")
    found = shown.json()
    assert (shown.code, found["status"], found["training"]["status"]) == (1, "abandoned", "running")
    assert [rank["state"] for rank in found["ranks"]] == ["lost", "lost"]

    viewed = await show("view", run_dir)
    assert viewed.code == 0
    assert "10 stored" in viewed.out
    manifest = read_manifest(run_dir)
    assert (manifest.status, manifest.telemetry_reason) == ("failed", "aggregator_died")
    assert await show("view", run_dir / "final_summary.json") == viewed._replace(err="")
    assert (await show("status", run_dir)).code == 1


async def test_a_report_that_somebody_removed_is_made_again(run_dir: Path, show: Show) -> None:
    async with live_run(run_dir) as (daemon, node, rank):
        await finish(daemon, node, rank)
    before, told = read_manifest(run_dir), await show("view", run_dir)
    for suffix in ("json", "txt"):
        (run_dir / f"final_summary.{suffix}").unlink()
    assert await show("view", run_dir) == told
    assert (run_dir / "final_summary.json").is_file()
    after = read_manifest(run_dir)
    assert (after.status, after.telemetry_status, after.training) == ("completed", "complete", before.training)


async def test_a_run_whose_manifest_is_damaged_is_seen_through_its_database(run_dir: Path, show: Show) -> None:
    async with live_run(run_dir):
        pass
    (run_dir / "manifest.json").write_bytes(b"\0{")
    shown = await show("status", run_dir)
    assert (shown.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert "traceml view" in shown.err
    assert (await show("view", run_dir)).code == 0
    assert (await show("status", run_dir)).code == 1


async def test_a_live_run_is_neither_viewed_nor_pruned(run_dir: Path, show: Show) -> None:
    async with live_run(run_dir):
        viewed = await show("view", run_dir)
        pruned = await show("prune", "--keep", "0", "--logs-dir", run_dir.parent)
    assert (viewed.code, viewed.out, viewed.err.count("\n")) == (2, "", 1)
    assert "still alive" in viewed.err
    assert (pruned.code, pruned.out) == (0, "")
    set_lease(run_dir, left_s=-1)
    assert (await show("prune", "--keep", "0", "--logs-dir", run_dir.parent)).out == f"removed {run_dir}\n"
    assert list(run_dir.parent.iterdir()) == []


async def test_a_rank_without_a_step_for_long_is_stalled(run_dir: Path, show: Show) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        long_ago = recent() - 400_000_000_000
        rank = SimRank(port=daemon.port, token=TOKEN, wall_minus_monotonic_ns=long_ago)
        await rank.join()
        await rank.send_steps(10)
        await rank.wait_acked()
        shown = await show("status", run_dir)
        await rank.close()
    assert shown.code == 1
    assert "Stalled: no step on rank 0 for 300 s" in shown.out


async def test_a_run_without_history_is_viewed_by_its_failure(run_dir: Path, show: Show) -> None:
    async with live_run(run_dir, has_history=False) as (daemon, node, rank):
        await finish(daemon, node, rank, exit_code=3)
    viewed = await show("view", run_dir)
    assert viewed.code == 0
    assert "Cause: " in viewed.out
    assert "Run test-run: failed" in viewed.out


async def test_a_run_is_drawn_as_a_page(run_dir: Path, tmp_path: Path, show: Show) -> None:
    async with live_run(run_dir) as (daemon, node, rank):
        assert (await show("view", run_dir, "--html")).code == 2
        await finish(daemon, node, rank)
    assert not (run_dir / "final_summary.html").exists()
    for path, words in ((run_dir / "final_summary.html", []), (tmp_path / "page.html", [tmp_path / "page.html"])):
        shown = await show("view", run_dir, "--html", *words)
        assert (shown.code, shown.out) == (0, f"{path}\n")
        assert path.read_text().startswith("<!doctype html>")
    assert "a PATH goes with --html" in (await show("view", run_dir, tmp_path / "page.html")).err
    assert (await show("view", run_dir, "--html", tmp_path / "no" / "page.html")).code == 2


async def test_prune_keeps_the_newest_and_what_is_no_run(run_dir: Path, show: Show) -> None:
    async with live_run(run_dir) as (daemon, node, rank):
        await finish(daemon, node, rank)
    logs = run_dir.parent
    found = read_manifest(run_dir)
    for name, created in (("old", "2026-01-01T00:00:00Z"), ("older", "2025-01-01T00:00:00Z")):
        (logs / name).mkdir()
        write_manifest(logs / name, msgspec.structs.replace(found, created_at=created, updated_at=created))
    (logs / "foreign").mkdir()
    (logs / "foreign" / "precious").touch()
    os.symlink(run_dir, logs / "link")
    shown = await show("prune", "--older-than", "52w", "--logs-dir", logs)
    assert shown.out == f"removed {logs / 'older'}\n"
    shown = await show("prune", "--keep", "1", "--logs-dir", logs)
    assert shown.out == f"removed {logs / 'old'}\n"
    assert sorted(path.name for path in logs.iterdir()) == ["foreign", "link", "test-run"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["status", "nowhere"], "nowhere"),
        (["status"], "logs"),
        (["view", "nowhere"], "nowhere"),
        (["view"], "RUN"),
        (["view", "nowhere", "--html"], "nowhere"),
        (["status", "--bogus"], "--bogus"),
        (["prune"], "--keep"),
        (["prune", "--keep", "1", "--older-than", "1d"], "--keep"),
        (["prune", "--keep", "-1"], "--keep"),
        (["prune", "--older-than", "soon"], "--older-than"),
    ],
)
async def test_what_is_not_there_or_not_meant_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: Show, words: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = await show(*words)
    assert (shown.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert shown.err.startswith("traceml: ")
    assert named in shown.err
