"""Promise 6: a rank that is killed has already handed over every step that it completed.

The real launcher and the real client around a stand-in for torchrun; with the real one: tests/e2e/test_faults.py, and
at random instants: test_promise_06_killed_ranks_keep_their_records.py.
"""

from __future__ import annotations

import contextlib
import os
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
