"""The commands as a user types them, with a real torchrun: what reaches the script, the demo, a job of a scheduler."""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from pathlib import Path

import pytest

from tests.faults.runner import free_ports
from tests.harness.torchrun import TRACEML, FinishedCommand, RunFolder, start, start_run

SCRIPT = Path(__file__).parent / "scripts" / "says_arguments.py"
ARGUMENTS = ["--lr", "0.1", "--run_name=x", "", "a b", "--max-restarts", "3", "--help", "-m"]

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    ("options", "target", "environ"),
    [
        ([], [SCRIPT], {}),
        (["-m"], [SCRIPT.stem], {"PYTHONPATH": str(SCRIPT.parent)}),
        ([], [SCRIPT.stem], {"PYTHONPATH": str(SCRIPT.parent), "PET_MODULE": "1"}),
        (["--no-python"], [sys.executable, SCRIPT], {}),
        (["--run-path"], [SCRIPT], {}),
        (["--disable-traceml"], [SCRIPT], {}),
    ],
    ids=["script", "module", "module by variable", "program", "run-path", "disabled"],
)
def test_every_kind_of_target_gets_its_arguments(
    tmp_path: Path, options: list[str], target: list[str | Path], environ: dict[str, str]
) -> None:
    with start_run([*options, *target, *ARGUMENTS], cwd=tmp_path, environ=environ) as command:
        done = command.finish()
    assert done.exit_code == 0, done.stderr.decode(errors="replace")
    assert json.loads(done.stdout) == ARGUMENTS
    assert RunFolder(tmp_path / "logs" / "run").manifest()["status"] == "completed"


def test_a_taken_name_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with start_run([SCRIPT], cwd=tmp_path) as command:
        assert command.finish().exit_code == 0
    before = sorted(tmp_path.rglob("*"))
    with start_run([SCRIPT], cwd=tmp_path) as command:
        done = command.finish()
    assert done.exit_code == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"traceml run: --run-name run: ")
    assert done.stderr.count(b"\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def demo(tmp_path: Path, *words: str) -> tuple[FinishedCommand, RunFolder]:
    with start([TRACEML, "demo", *words], cwd=tmp_path) as command:
        done = command.finish()
        assert [process for process in command.marked() if process.pid != command.process.pid] == []
    (run_dir,) = (tmp_path / "logs").glob("demo-*")
    return done, RunFolder(run_dir)


def test_the_demo_trains_and_prints_its_report(tmp_path: Path) -> None:
    done, folder = demo(tmp_path)
    assert done.exit_code == 0
    assert b"step 150 of 150" in done.stdout
    assert (folder.path / "final_summary.txt").read_bytes().strip() in done.stdout
    assert done.stderr.rstrip().endswith(b"[TraceML] Training completed (exit code 0).")
    assert [entry["attempts"][0]["steps"] for entry in folder.summary()["ranks"]] == [150, 150]


@pytest.mark.parametrize(("fault", "category"), [("crash", "python_exception"), ("kill", "sigkill_unattributed")])
def test_a_demo_with_a_fault_says_who_failed(tmp_path: Path, fault: str, category: str) -> None:
    done, folder = demo(tmp_path, "--fault", fault, "--quiet")
    assert done.exit_code == 1
    failure = folder.failure()
    assert (failure["category"], failure["initiating_rank"]) == (category, 1)
    assert [entry["attempts"][0]["steps"] for entry in folder.summary()["ranks"]] == [99, 99]
    assert b"[TraceML] Run " not in done.stderr


def test_a_requeued_job_of_slurm_trains_under_a_name_with_a_suffix(tmp_path: Path) -> None:
    """Both nodes ask for the job's name; the owner's folder of that name is taken, the peer does not know it."""
    taken = tmp_path / "logs_0" / "slurm-7"
    taken.mkdir(parents=True)
    (taken / "kept.txt").write_text("of the first time")
    master_port, aggregator_port = free_ports(2)
    job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_NODELIST": "127.0.0.1"}
    mark = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        launchers = []
        for node in range(2):
            words = ["--master-port", str(master_port), "--aggregator-port", str(aggregator_port)]
            words += ["--aggregator-bind-host", "127.0.0.1", "--logs-dir", str(tmp_path / f"logs_{node}")]
            argv = [TRACEML, "run", *words, SCRIPT]
            environ = {**job, "SLURM_NODEID": str(node)}
            launchers.append(
                stack.enter_context(start(argv, cwd=tmp_path, environ=environ, name=f"node_{node}", mark=mark))
            )
        finished = [launcher.finish() for launcher in launchers]
    assert [done.exit_code for done in finished] == [0, 0]
    assert b"From Slurm: --nnodes 2" in finished[0].stderr
    assert [path.name for path in taken.iterdir()] == ["kept.txt"]
    manifest = RunFolder(tmp_path / "logs_0" / "slurm-7-2").manifest()
    assert (manifest["status"], manifest["run_name"]) == ("completed", "slurm-7-2")
    assert manifest["telemetry"]["ranks_finished"] == [0, 1]
    assert RunFolder(tmp_path / "logs_1" / "slurm-7-2").node(1)["exit_code"] == 0
