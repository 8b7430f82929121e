"""Who gets a run's folder, and that nothing is left where nobody does."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from traceml_client.protocol import manifest
from traceml_client.protocol.errors import ConfigError
from traceml_client.protocol.launch import layout_node_dir
from traceml_client.protocol.node import NODE_SCHEMA_VERSION, NodeReport
from traceml_launch.commandline.config import LaunchConfig, Target
from traceml_launch.folder import peer_folder, run_folder
from traceml_launch.folder.run_folder import RunFolder, confirm, release, reserve, state_of

NOW_NS = 1_800_000_000_000_000_000
LEASE_NS = int(manifest.LEASE_S * 1_000_000_000)
HOLDER = manifest.LeaseHolder(host="here", pid=7, start_ticks=9)


def launch(logs_dir: Path, **more: Any) -> LaunchConfig:
    values: dict[str, Any] = {"run_name": "r", "is_run_name_explicit": True, **more}
    return LaunchConfig(target=Target(kind="script", name="train.py"), logs_dir=logs_dir, **values)


def take(config: LaunchConfig, *, now_ns: int = NOW_NS) -> RunFolder:
    return reserve(config, holder=HOLDER, now_ns=now_ns)


def finish(run_dir: Path) -> None:
    manifest.write_manifest(run_dir, msgspec.structs.replace(manifest.read_manifest(run_dir), status="completed"))


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_folder_appears_whole_and_private(tmp_path: Path) -> None:
    folder = take(launch(tmp_path / "a" / "logs", nnodes_min=2, nnodes_max=2, num_local_ranks=4))
    assert folder.run_dir == tmp_path / "a" / "logs" / "r"
    assert everything_in(tmp_path / "a" / "logs") == ["r", "r/aggregator", "r/manifest.json", "r/nodes"]
    for path in (folder.run_dir, folder.run_dir / "nodes", folder.run_dir / "aggregator", tmp_path / "a"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.run_dir / "manifest.json").stat().st_mode) == 0o600
    first = manifest.read_manifest(folder.run_dir)
    assert (first.run_name, first.run_id, first.status, first.telemetry_status) == (
        "r", folder.run_id, "running", "pending",
    )  # fmt: skip
    assert first.topology == manifest.Topology(nnodes=2, nproc_per_node=4, world_size=8)
    assert first.lease is not None
    assert first.lease.holder == HOLDER


def test_two_runs_have_two_ids(tmp_path: Path) -> None:
    assert take(launch(tmp_path, run_name="a")).run_id != take(launch(tmp_path, run_name="b")).run_id


def test_a_run_is_live_until_its_lease_is_over(tmp_path: Path) -> None:
    run_dir = tmp_path / "r"
    assert state_of(run_dir, now_ns=NOW_NS) == "free"
    run_dir.mkdir()
    assert state_of(run_dir, now_ns=NOW_NS) == "free"
    take(launch(tmp_path))
    assert state_of(run_dir, now_ns=NOW_NS + LEASE_NS - 1_000_000) == "live"
    assert state_of(run_dir, now_ns=NOW_NS + LEASE_NS + 1_000_000) == "abandoned"
    finish(run_dir)
    assert state_of(run_dir, now_ns=NOW_NS) == "finished"
    (run_dir / "manifest.json").write_text("{}")
    assert state_of(run_dir, now_ns=NOW_NS) == "foreign"


@pytest.mark.parametrize(
    ("state", "overwrite", "words"),
    [
        ("live", False, "still alive"),
        ("live", True, "still alive"),
        ("finished", False, "--overwrite"),
        ("abandoned", False, "--overwrite"),
        ("foreign", False, "no run folder of ours"),
        ("foreign", True, "no run folder of ours"),
    ],
)
def test_a_chosen_name_that_is_taken_is_refused_and_nothing_changes(
    tmp_path: Path, state: str, overwrite: bool, words: str
) -> None:
    take(launch(tmp_path))
    if state == "finished":
        finish(tmp_path / "r")
    if state == "foreign":
        (tmp_path / "r" / "manifest.json").unlink()
    before = everything_in(tmp_path)
    now_ns = NOW_NS + 2 * LEASE_NS if state == "abandoned" else NOW_NS
    with pytest.raises(ConfigError, match=r"^--run-name r: ") as caught:
        take(launch(tmp_path, overwrite=overwrite), now_ns=now_ns)
    assert words in str(caught.value)
    assert everything_in(tmp_path) == before


def test_overwrite_replaces_a_finished_run_once_training_has_started(tmp_path: Path) -> None:
    first = take(launch(tmp_path))
    finish(first.run_dir)
    second = take(launch(tmp_path, overwrite=True))
    assert manifest.read_manifest(tmp_path / "r").run_id == second.run_id != first.run_id
    confirm(second)
    assert sorted(os.listdir(tmp_path)) == ["r"]


def test_a_launch_that_never_starts_gives_everything_back(tmp_path: Path) -> None:
    release(take(launch(tmp_path / "a" / "b")))
    assert everything_in(tmp_path) == []


def test_a_replaced_run_comes_back_if_nothing_starts(tmp_path: Path) -> None:
    first = take(launch(tmp_path))
    finish(first.run_dir)
    before = everything_in(tmp_path)
    release(take(launch(tmp_path, overwrite=True)))
    assert everything_in(tmp_path) == before
    assert manifest.read_manifest(tmp_path / "r").run_id == first.run_id


def test_a_derived_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    derived = launch(tmp_path, is_run_name_explicit=False)
    names = [take(derived).run_name for _ in range(3)]
    assert names == ["r", "r-2", "r-3"]
    assert manifest.read_manifest(tmp_path / "r-2").run_name == "r-2"
    assert sorted(os.listdir(tmp_path)) == names


def test_launchers_at_the_same_moment_get_different_folders(tmp_path: Path) -> None:
    taken: list[RunFolder] = []
    derived = launch(tmp_path / "logs", is_run_name_explicit=False)
    threads = [threading.Thread(target=lambda: taken.append(take(derived))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({folder.run_dir for folder in taken}) == 8
    assert all(manifest.read_manifest(folder.run_dir).run_id == folder.run_id for folder in taken)
    assert len(os.listdir(tmp_path / "logs")) == 8


@pytest.mark.parametrize("logs_dir", ["file", "file/logs", "/proc/nowhere/logs"])
def test_a_logs_folder_that_cannot_be_made_is_named_and_nothing_is_left(tmp_path: Path, logs_dir: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^--logs-dir .* is not writable: "):
        take(launch(tmp_path / logs_dir))
    with pytest.raises(ConfigError, match=r"^--logs-dir .* is not writable: "):
        peer_folder.check_joinable(launch(tmp_path / logs_dir), now_ns=NOW_NS)
    assert everything_in(tmp_path) == ["file"]


# --- nodes that do not own the run ----------------------------------------------------------------------------------


def report(run_id: str) -> bytes:
    return msgspec.json.encode(
        NodeReport(
            schema_version=NODE_SCHEMA_VERSION, run_name="r", run_id=run_id, node_index=1, host="h", launcher_pid=1,
            started_ns=1, ended_ns=2, torchrun_pid=3, exit_code=0, signal=None, interrupted_by=None,
        )
    )  # fmt: skip


def leave_a_report(logs_dir: Path, run_name: str, run_id: str) -> None:
    node_dir = logs_dir / run_name / layout_node_dir(1)
    node_dir.mkdir(parents=True)
    (node_dir / "node.json").write_bytes(report(run_id))


def test_a_peer_on_a_shared_file_system_uses_the_owners_folder(tmp_path: Path) -> None:
    owner = take(launch(tmp_path))
    run_dir, is_shared = peer_folder.join(
        launch(tmp_path, node_rank=1), run_name="r", run_id=owner.run_id, node_index=1
    )
    assert (run_dir, is_shared) == (owner.run_dir, True)
    assert (owner.run_dir / layout_node_dir(1)).is_dir()


def test_a_peer_of_its_own_makes_a_folder_without_a_manifest(tmp_path: Path) -> None:
    _, is_shared = peer_folder.join(launch(tmp_path / "own"), run_name="r", run_id="far away", node_index=1)
    assert not is_shared
    assert everything_in(tmp_path / "own") == ["r", "r/nodes", "r/nodes/node_1"]


def test_a_peer_that_joins_again_finds_its_folder(tmp_path: Path) -> None:
    leave_a_report(tmp_path, "r", "this run")
    run_dir, _ = peer_folder.join(launch(tmp_path), run_name="r", run_id="this run", node_index=1)
    assert run_dir == tmp_path / "r"


def test_files_of_an_earlier_run_stop_a_chosen_name_but_not_a_derived_one(tmp_path: Path) -> None:
    leave_a_report(tmp_path, "r", "an earlier run")
    chosen = launch(tmp_path, node_rank=1)
    with pytest.raises(ConfigError, match="--overwrite"):
        peer_folder.check_joinable(chosen, now_ns=NOW_NS)
    with pytest.raises(ConfigError, match="--overwrite"):
        peer_folder.join(chosen, run_name="r", run_id="this run", node_index=1)
    derived = replace(chosen, is_run_name_explicit=False)
    peer_folder.check_joinable(derived, now_ns=NOW_NS)
    run_dir, _ = peer_folder.join(derived, run_name="r", run_id="this run", node_index=1)
    assert run_dir == tmp_path / "r-2"


def test_overwrite_clears_a_peers_own_files(tmp_path: Path) -> None:
    leave_a_report(tmp_path, "r", "an earlier run")
    chosen = launch(tmp_path, overwrite=True)
    peer_folder.check_joinable(chosen, now_ns=NOW_NS)
    run_dir, _ = peer_folder.join(chosen, run_name="r", run_id="this run", node_index=1)
    assert list((run_dir / layout_node_dir(1)).iterdir()) == []


@pytest.mark.parametrize("state", ["free", "live", "finished", "abandoned"])
def test_a_peer_joins_what_is_live_or_not_there_yet(tmp_path: Path, state: str) -> None:
    if state != "free":
        take(launch(tmp_path))
    if state == "finished":
        finish(tmp_path / "r")
    now_ns = NOW_NS + 2 * LEASE_NS if state == "abandoned" else NOW_NS
    if state in ("free", "live"):
        before = everything_in(tmp_path)
        peer_folder.check_joinable(launch(tmp_path, node_rank=1), now_ns=now_ns)
        assert everything_in(tmp_path) == before
        return
    with pytest.raises(ConfigError, match=r"^--run-name r: "):
        peer_folder.check_joinable(launch(tmp_path, node_rank=1), now_ns=now_ns)


def test_a_peer_without_a_daemon_still_has_a_place_for_its_streams(tmp_path: Path) -> None:
    run_dir, _ = peer_folder.join(launch(tmp_path), run_name="r", run_id="", node_index=1)
    assert (run_dir / layout_node_dir(1)).is_dir()


def test_the_states_of_a_folder_that_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("")
    assert run_folder.state_of(tmp_path / "r", now_ns=NOW_NS) == "foreign"
