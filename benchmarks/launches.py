"""What a supervised launch adds around training: before torchrun starts, and from the last step to the exit."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import free_port
from benchmarks.peer import Peer
from tests.harness.processes import MARK, find_marked
from tests.harness.torchrun import RunningCommand, start, start_run

TRAIN = Path(__file__).parent / "train_short.py"
LIMIT_S = 120.0
STAMP = "last_step_ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFigures:
    startup_s: float
    """From the command's start until torchrun's process exists."""
    exit_s: float
    """From the end of the last step to the command's exit."""


def ours(num_runs: int) -> LaunchFigures:
    """Medians over `num_runs` healthy two-rank jobs."""

    def begin(work: Path) -> RunningCommand:
        return start_run([f"--aggregator-port={free_port()}", "--nproc-per-node=2", TRAIN, work / STAMP], cwd=work)

    return _medians([_one(begin) for _ in range(num_runs)])


def peers(peer: Peer, num_runs: int) -> LaunchFigures:
    """The same job under the peer's launcher, with its own calls in the script."""

    def begin(work: Path) -> RunningCommand:
        options = ["--nproc-per-node=2", "--logs-dir", "logs", "--run-name", "run"]
        options += ["--aggregator-port", str(free_port()), "--master-port", str(free_port())]
        script: Sequence[str | Path] = [TRAIN, *options, "--args", work / STAMP, "--peer"]
        return start([peer.traceml, "run", *script], cwd=work)

    return _medians([_one(begin) for _ in range(num_runs)])


def import_ms(statement: str, num_runs: int = 15) -> float:
    """Milliseconds that a statement adds to a fresh interpreter, a median of differences taken in turn."""
    added = [_interpreter_s(statement) - _interpreter_s("pass") for _ in range(num_runs)]
    return 1000.0 * statistics.median(added)


def _one(begin: Callable[[Path], RunningCommand]) -> LaunchFigures:
    with tempfile.TemporaryDirectory(prefix="launch_") as folder, begin(Path(folder)) as command:
        command.wait_for(lambda: _has_torchrun(command), "torchrun", within_s=LIMIT_S)
        startup_s = (time.time_ns() - command.started_ns) / 1e9
        finished = command.finish(within_s=LIMIT_S)
        if finished.exit_code:
            raise RuntimeError(f"the job ended with {finished.exit_code}: {finished.stderr[-1000:].decode()}")
        last_step_ns = int((Path(folder) / STAMP).read_text())
        return LaunchFigures(startup_s=startup_s, exit_s=(finished.ended_ns - last_step_ns) / 1e9)


def _has_torchrun(command: RunningCommand) -> bool:
    return any("torch.distributed.run" in p.command or "torchrun" in p.command for p in find_marked(MARK, command.mark))


def _medians(figures: list[LaunchFigures]) -> LaunchFigures:
    return LaunchFigures(
        startup_s=statistics.median(one.startup_s for one in figures),
        exit_s=statistics.median(one.exit_s for one in figures),
    )


def _interpreter_s(statement: str) -> float:
    started_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - started_s
