"""Run the launcher (or plain torchrun) for real, with a deadline, and collect what it left: files, status, streams.

Every command carries its own mark in its environment; leaving the `with` block ends whatever still carries it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.harness.processes import MARK, FoundProcess, end_marked, find_marked, signal_marked, wait_until

TRACEML = Path(sys.executable).parent / "traceml"
SERVICE_VARIABLES = ("TRACEML_", "SLURM_", "PET_", "KUBERNETES_")
"""Prefixes that must not leak from the machine that runs the tests into the runs."""


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment for a child: gloo on loopback, nothing that a scheduler or an outer run put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SERVICE_VARIABLES)}
    return {**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **extra}


@dataclass(frozen=True, slots=True)
class FinishedCommand:
    """A command that has ended. `exit_code` is negative where a signal ended it, as in `subprocess`."""

    exit_code: int
    started_ns: int
    ended_ns: int
    """Wall clock, read when the kernel said that it was gone."""
    stdout: bytes
    stderr: bytes


@dataclass(slots=True)
class RunningCommand:
    """A command that was started by `start`."""

    process: subprocess.Popen[bytes]
    mark: str
    stdout_path: Path
    stderr_path: Path
    started_ns: int
    pidfd: int = field(init=False)

    def __post_init__(self) -> None:
        self.pidfd = os.pidfd_open(self.process.pid)

    def __enter__(self) -> RunningCommand:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        end_marked(MARK, self.mark)
        self.process.wait(10)
        os.close(self.pidfd)

    def stdout(self) -> bytes:
        return self.stdout_path.read_bytes()

    def stderr(self) -> bytes:
        return self.stderr_path.read_bytes()

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, is_true: Callable[[], bool], why: str, *, within_s: float = 60.0) -> None:
        """Raises TimeoutError with what the command printed, also if it ends without the condition."""
        try:
            wait_until(lambda: is_true() or not self.is_alive(), why, within_s=within_s, pidfd=self.pidfd)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self._tails()}") from None
        if not is_true():
            raise TimeoutError(f"{why}: the command ended first, code {self.process.returncode}\n{self._tails()}")

    def wait_for_output(self, text: str, *, within_s: float = 60.0) -> None:
        self.wait_for(lambda: text.encode() in self.stdout(), f"{text!r} on standard output", within_s=within_s)

    def marked(self) -> list[FoundProcess]:
        """Every living process of this command, itself included."""
        return find_marked(MARK, self.mark)

    def find(self, sign: str) -> list[FoundProcess]:
        """Living processes of this command whose command line contains `sign`."""
        return [process for process in self.marked() if sign in process.command]

    def torchrun_pid(self) -> int:
        """The torchrun that this launcher supervises. Raises LookupError if it is not there."""
        for process in self.find("-m torch.distributed.run"):
            if process.parent_pid == self.process.pid:
                return process.pid
        raise LookupError("torchrun is not running")

    def worker_pids(self) -> list[int]:
        """torchrun's own children, in the order in which it started them."""
        agent = self.torchrun_pid()
        return sorted(process.pid for process in self.marked() if process.parent_pid == agent)

    def signal(self, pid: int, number: int) -> None:
        """Signal one process of this command. Raises LookupError if it is not one, or gone."""
        if not signal_marked(MARK, self.mark, pid, number):
            raise LookupError(f"process {pid} is not of this command")

    def finish(self, *, within_s: float = 90.0) -> FinishedCommand:
        """Wait for its end. Raises TimeoutError, with what it printed, after `within_s`."""
        select.select([self.pidfd], [], [], within_s)
        ended_ns = time.time_ns()
        if self.process.poll() is None:
            raise TimeoutError(f"still running after {within_s:g} s\n{self._tails()}")
        return FinishedCommand(self.process.returncode, self.started_ns, ended_ns, self.stdout(), self.stderr())

    def _tails(self) -> str:
        parts = []
        for name, data in (("stdout", self.stdout()), ("stderr", self.stderr())):
            parts.append(f"--- {name}\n{data[-3000:].decode(errors='replace')}")
        return "\n".join(parts)


def start(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    environ: Mapping[str, str] | None = None,
    stdout: int | None = None,
    name: str = "command",
    mark: str | None = None,
) -> RunningCommand:
    """Start a command in a session of its own, its streams in `cwd/NAME.stdout` and `.stderr`.

    With `stdout` its standard output goes to that descriptor instead. `mark` lets two commands share one mark.
    """
    mark = mark or uuid.uuid4().hex
    paths = (cwd / f"{name}.stdout", cwd / f"{name}.stderr")
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        started_ns = time.time_ns()
        process = subprocess.Popen(
            [str(argument) for argument in argv],
            cwd=cwd,
            env={**clean_environment(), **(environ or {}), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=files[0] if stdout is None else stdout,
            stderr=files[1],
            start_new_session=True,
        )
    return RunningCommand(process, mark, *paths, started_ns)


def start_run(
    arguments: Sequence[str | Path], *, cwd: Path, run_name: str = "run", logs_dir: Path | None = None, **options: Any
) -> RunningCommand:
    """`traceml run --run-name RUN_NAME --logs-dir LOGS_DIR --linger-sec 0 ARGUMENTS`; `options` as for `start`."""
    ours = ["--run-name", run_name, "--logs-dir", logs_dir or cwd / "logs", "--linger-sec", "0"]
    return start([TRACEML, "run", *ours, *arguments], cwd=cwd, **options)


def start_torchrun(arguments: Sequence[str | Path], *, cwd: Path, **options: Any) -> RunningCommand:
    """Plain torchrun on a port of its own choosing, for comparison; `options` as for `start`."""
    return start([sys.executable, "-m", "torch.distributed.run", *arguments], cwd=cwd, **options)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """What a run left in LOGS_DIR/RUN_NAME."""

    path: Path

    def manifest(self) -> dict[str, Any]:
        return self._json("manifest.json")

    def summary(self) -> dict[str, Any]:
        return self._json("final_summary.json")

    def failure(self) -> dict[str, Any]:
        return self._json("failure_report.json")

    def node(self, node: int = 0) -> dict[str, Any]:
        return self._json(f"nodes/node_{node}/node.json")

    def report_of(self, launcher_pid: int) -> dict[str, Any] | None:
        """The `node.json` that this launcher wrote, whichever node index it was given; null if it wrote none."""
        for path in sorted(self.path.glob("nodes/*/node.json")):
            report: dict[str, Any] = json.loads(path.read_bytes())
            if report["launcher_pid"] == launcher_pid:
                return report
        return None

    def rank_stream(self, rank: int, stream: str, *, node: int = 0, attempt: int = 0) -> bytes:
        """The bytes of a rank's own `stdout` or `stderr`."""
        return (self.path / f"nodes/node_{node}/ranks/rank_{rank}/attempt_{attempt}/{stream}.log").read_bytes()

    def training_stream(self, stream: str, *, node: int = 0) -> bytes:
        """The bytes of everything the training command of a node wrote to `stdout` or `stderr`."""
        return (self.path / f"nodes/node_{node}/training.{stream}.log").read_bytes()

    def _json(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.path / name).read_bytes())
        return document


def signal_number(name: str) -> int:
    """SIGTERM -> 15."""
    return int(signal.Signals[name])
