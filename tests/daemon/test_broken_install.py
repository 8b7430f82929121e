"""An installation without its failure catalogue, or with a damaged one: it is said, and nothing is diagnosed worse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import traceml_daemon
from tests.harness.daemon_process import launch_order, supervised_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.torchrun import clean_environment
from traceml_client.protocol.node import RankError

ERROR = RankError("main", "ValueError", "no", "Traceback ...", 1, 3, "forward")
LOG = "[rank1]: Traceback (most recent call last):\n[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n"
DAMAGES = ["no folder", "no file", "half a file", "no text"]


def broken_site(tmp_path: Path, damage: str) -> Path:
    """A folder for PYTHONPATH that has its own daemon package."""
    package = tmp_path / "site" / "traceml_daemon"
    shutil.copytree(Path(traceml_daemon.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    catalog = package / "triage" / "catalog"
    match damage:
        case "no folder":
            shutil.rmtree(catalog)
        case "no file":
            for file in catalog.iterdir():
                file.unlink()
        case "half a file":
            file = catalog / "cuda_oom.toml"
            file.write_text(file.read_text().partition("[[signs]]")[0] + "[[signs]]\npattern = ")
        case "no text":
            (catalog / "cuda_oom.toml").write_bytes(b"\xff\xfe" * 100)
    return package.parent


def run_traceml(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "traceml_launch", *words]
    environment = clean_environment(PYTHONPATH=str(site))
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_diagnosis_says_it_in_one_line(tmp_path: Path, damage: str) -> None:
    site = broken_site(tmp_path, damage)
    log = tmp_path / "train.log"
    log.write_text(LOG)
    done = run_traceml(site, "diagnose", str(log))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(site / "traceml_daemon/triage/catalog") in done.stderr
    assert "install it again" in done.stderr


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("no folder", ""),
        ("no folder", "exit -9"),
        ("no file", "CUDA out of memory"),
        ("half a file", "cuda_oom"),
        ("no text", ""),
    ],
)
def test_so_does_what_explains(tmp_path: Path, damage: str, words: str) -> None:
    site = broken_site(tmp_path, damage)
    done = run_traceml(site, "explain", *words.split(maxsplit=1))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(site / "traceml_daemon/triage/catalog") in done.stderr


def test_so_does_what_explains_exit_codes(tmp_path: Path) -> None:
    site = broken_site(tmp_path, "")
    (site / "traceml_daemon/triage/endings.toml").unlink()
    done = run_traceml(site, "explain", "exit", "-9")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "endings.toml" in done.stderr


@pytest.mark.parametrize("damage", ["no folder", "half a file"])
async def test_a_failed_run_has_a_fault_of_its_telemetry(
    tmp_path: Path, run_dir: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = broken_site(tmp_path, damage)
    monkeypatch.setenv("PYTHONPATH", str(site))
    async with supervised_daemon(launch_order(run_dir, nproc_per_node=1)) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token="a secret")
        await node.join()
        rank = await node.start_rank(SimRank(port=daemon.port))
        await rank.join()
        await rank.send_steps(10)
        await rank.fail(ERROR)
        await rank.finish(exit_code=1, error=ERROR)
        await rank.close()
        await node.end(node.report(rank_end(rank, exit_code=1), exit_code=1))
        finalized = await node.wait_finalized()
        assert await daemon.exit_code() == 0
        await node.close()
    written = daemon.manifest()
    assert (written.status, written.training.exit_code) == ("failed", 1)
    assert (finalized.telemetry_status, finalized.telemetry_reason) == ("failed", "finalization_error")
    error = (run_dir / written.artifacts["finalization_error"]).read_text()
    assert str(site / "traceml_daemon/triage/catalog") in error
    assert "install it again" in error
