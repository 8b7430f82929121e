"""Two launchers on loopback: static and dynamic rendezvous, one logs folder or two, and a node that dies."""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.catalogue import OWN_SCRIPTS
from tests.faults.runner import free_ports
from tests.harness.certificates import Certificates, make_certificates
from tests.harness.torchrun import RunFolder, RunningCommand, start_run

TOLD_WITHIN_S = 10.0
TOKEN = "a-token-that-both-nodes-know"

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(180)]


@contextlib.contextmanager
def two_nodes(
    tmp_path: Path,
    *training: str,
    is_dynamic: bool = False,
    has_shared_logs: bool = True,
    token: str = "",
    files: Certificates | None = None,
) -> Iterator[list[RunningCommand]]:
    """Two launchers with one rank each; their logs folders are `logs` or `logs_0` and `logs_1`."""
    encryption = ({}, {}) if files is None else encrypted(files)
    port, aggregator_port = free_ports(2)
    mark = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        launchers = []
        for node in range(2):
            place = ["--nnodes=2", "--nproc-per-node=1", "--aggregator-bind-host=127.0.0.1"]
            place += [f"--aggregator-port={aggregator_port}"]
            if is_dynamic:
                place += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"]
                place += ["--local-addr=127.0.0.1"]
            else:
                place += [f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
            launchers.append(
                stack.enter_context(
                    start_run(
                        [*place, OWN_SCRIPTS / training[0], *training[1:]],
                        cwd=tmp_path,
                        logs_dir=tmp_path / ("logs" if has_shared_logs else f"logs_{node}"),
                        environ={**({"TRACEML_TOKEN": token} if token else {}), **encryption[node]},
                        name=f"node_{node}",
                        mark=mark,
                    )
                )
            )
        yield launchers


def encrypted(files: Certificates) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of the owner and of the other node: it checks the certificate, and has none of its own."""
    trust = {"TRACEML_TLS_CA": files.ca}
    return {**trust, "TRACEML_TLS_CERT": files.cert, "TRACEML_TLS_KEY": files.key}, trust


def owner_folder(tmp_path: Path) -> RunFolder:
    """The one run folder with a manifest."""
    (manifest,) = tmp_path.glob("logs*/run/manifest.json")
    return RunFolder(manifest.parent)


@pytest.mark.parametrize("has_shared_logs", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "c10d"])
def test_report_of_the_owner_covers_both_nodes(tmp_path: Path, is_dynamic: bool, has_shared_logs: bool) -> None:
    is_encrypted = not is_dynamic and not has_shared_logs
    files = make_certificates(tmp_path / "certificates") if is_encrypted else None
    with two_nodes(
        tmp_path, "healthy.py", is_dynamic=is_dynamic, has_shared_logs=has_shared_logs, token=TOKEN, files=files
    ) as launchers:
        codes = [launcher.finish().exit_code for launcher in launchers]
    assert codes == [0, 0]
    manifest, summary = owner_folder(tmp_path).manifest(), owner_folder(tmp_path).summary()
    assert (manifest["status"], manifest["telemetry_status"]) == ("completed", "complete")
    assert manifest["telemetry"]["authenticated"] is True
    assert [(node["node_rank"], node["exit_code"]) for node in summary["training"]["nodes"]] == [(0, 0), (1, 0)]
    assert [(entry["rank"], entry["attempts"][0]["steps"]) for entry in summary["ranks"]] == [(0, 30), (1, 30)]
    assert sorted(entry["attempts"][0]["node_rank"] for entry in summary["ranks"]) == [0, 1]


def test_nodes_without_a_secret_work_and_say_so(tmp_path: Path) -> None:
    with two_nodes(tmp_path, "healthy.py", has_shared_logs=False) as launchers:
        finished = [launcher.finish() for launcher in launchers]
    assert [done.exit_code for done in finished] == [0, 0]
    assert owner_folder(tmp_path).manifest()["telemetry"]["authenticated"] is False
    assert b"authenticat" in finished[0].stderr


def test_evidence_of_the_other_node_reaches_the_owner(tmp_path: Path) -> None:
    with two_nodes(tmp_path, "raises.py", "--rank", "1", has_shared_logs=False, token=TOKEN) as launchers:
        finished = [launcher.finish() for launcher in launchers]
    assert [done.exit_code for done in finished] == [1, 1]
    failure = owner_folder(tmp_path).failure()
    assert (failure["initiating_rank"], failure["node_rank"], failure["category"]) == (1, 1, "python_exception")
    assert (owner_folder(tmp_path).path / "nodes/node_1/node.json").exists()
    assert any("has no label" in (item["text"] or "") for item in failure["evidence"]) or "label" in failure["summary"]
    assert b"Rank 1 (node 1) raised ValueError" in finished[0].stderr


@pytest.mark.parametrize("has_shared_logs", [True, False], ids=["shared", "separate"])
def test_owner_says_within_ten_seconds_that_a_node_lost_its_agent(tmp_path: Path, has_shared_logs: bool) -> None:
    training = ("healthy.py", "--steps", "400", "--step-seconds", "0.1")
    with two_nodes(tmp_path, *training, has_shared_logs=has_shared_logs, token=TOKEN) as launchers:
        owner, other = launchers
        owner.wait_for(lambda: b"step 10" in owner.stdout() + other.stdout(), "both nodes train", within_s=90)
        before = len(owner.stderr())
        killed_s = time.monotonic()
        other.signal(other.torchrun_pid(), signal.SIGKILL)
        owner.wait_for(lambda: b"node 1" in owner.stderr()[before:], "the owner says so", within_s=TOLD_WITHIN_S)
        assert time.monotonic() - killed_s < TOLD_WITHIN_S
        assert other.finish().exit_code == 137
        if owner.is_alive():
            with contextlib.suppress(LookupError):
                owner.signal(owner.torchrun_pid(), signal.SIGKILL)
        done = owner.finish(within_s=60)
    manifest = owner_folder(tmp_path).manifest()
    assert manifest["status"] == "failed"
    node_0 = owner_folder(tmp_path).node(0)
    assert done.exit_code == (node_0["exit_code"] if node_0["signal"] is None else 137)
    assert [node["signal"] for node in manifest["training"]["nodes"]][1] == "SIGKILL"


def test_node_rank_that_is_held_already_is_refused(tmp_path: Path) -> None:
    port, aggregator_port = free_ports(2)
    arguments = ["--nnodes=2", "--node-rank=0", f"--master-port={port}", f"--aggregator-port={aggregator_port}"]
    arguments += ["--aggregator-bind-host=127.0.0.1", OWN_SCRIPTS / "healthy.py"]
    with start_run(arguments, cwd=tmp_path, name="first") as first:
        first.wait_for((tmp_path / "logs/run/manifest.json").exists, "the first launcher owns the run", within_s=30)
        with start_run(arguments, cwd=tmp_path, name="second") as second:
            done = second.finish(within_s=30)
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert first.is_alive()
