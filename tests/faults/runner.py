"""Runs one case under `traceml run`, one launcher a node on loopback, and says what was seen.

A launcher inherits nothing of the test but its environment, every run has a deadline, and only processes with the run's
own mark are ever signalled.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.catalogue import Action, Case, Fault
from tests.harness.processes import MARK, find_marked, wait_until
from tests.harness.torchrun import FinishedCommand, RunFolder, RunningCommand, signal_number, start_run

RUN_NAME = "fault"
DEADLINE_S = 420.0
"""Above torch's own exit barrier of 300 s, which a launcher may have to sit out; no single-node run comes near."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a case left behind. Launchers and folders are in node order."""

    case: Case
    launchers: tuple[FinishedCommand, ...]
    folder: RunFolder
    """The owner's."""
    reports: tuple[dict[str, Any] | None, ...]
    """Each launcher's `node.json`; null where it wrote none."""
    left: tuple[str, ...]
    """Commands of processes that were still there when the last launcher had ended."""
    was_stopped: bool
    """It did not end by itself within the fault's limit."""
    hit_launchers: frozenset[int]
    """Nodes whose launcher the action killed: nothing is asked of them."""


@dataclass(slots=True)
class _Job:
    case: Case
    work: Path
    mark: str
    ports: tuple[int, int, int]
    tmpfs: Path | None
    launchers: list[RunningCommand]

    @property
    def fault(self) -> Fault:
        return self.case.fault

    def find(self, sign: str, parent_pid: int) -> int | None:
        for process in find_marked(MARK, self.mark):
            if process.parent_pid == parent_pid and sign in process.command:
                return process.pid
        return None


def run_case(case: Case, work: Path, *, has_shared_logs: bool = True) -> Outcome:
    """Run it once in `work` (an empty folder).

    Raises:
        TimeoutError: it did not end; the text holds what was printed. Everything it started has been ended.
    """
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(_prepared(case, work))
        for node in range(case.fault.num_launchers):
            logs_dir = _logs_dir(work, node, has_shared_logs)
            job.launchers.append(stack.enter_context(_start_node(job, node, logs_dir)))
        hit = _disturb(job) if case.fault.action else frozenset()
        was_stopped = not _wait_for_end(job)
        finished = tuple(launcher.finish(within_s=5) for launcher in job.launchers)
        left = _what_is_left(job)
        folders = [RunFolder(_logs_dir(work, node, has_shared_logs) / RUN_NAME) for node in range(len(finished))]
        owner = next((folder for folder in folders if (folder.path / "manifest.json").exists()), folders[0])
        pids = [launcher.process.pid for launcher in job.launchers]
        reports = tuple(folder.report_of(pid) for folder, pid in zip(folders, pids, strict=True))
        return Outcome(case, finished, owner, reports, left, was_stopped, hit)


def _logs_dir(work: Path, node: int, has_shared_logs: bool) -> Path:
    return work / ("logs" if has_shared_logs else f"logs_{node}")


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of loopback that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(one.getsockname()[1] for one in sockets)


@contextlib.contextmanager
def _prepared(case: Case, work: Path) -> Iterator[_Job]:
    """Copy the scripts, and hold what the fault wants held: a port, a small file system."""
    work.chmod(0o755)
    for script in case.scripts.glob("*.py"):
        shutil.copy(script, work)
    port, port2, aggregator_port = free_ports(3)
    job = _Job(case, work, uuid.uuid4().hex, (port, port2, aggregator_port), None, [])
    with contextlib.ExitStack() as stack:
        if "tmpfs" in case.fault.needs:
            job.tmpfs = stack.enter_context(small_tmpfs())
        if case.fault.helper == "hold_port":
            held = stack.enter_context(socket.create_server(("0.0.0.0", port)))
            held.listen()
        yield job


@contextlib.contextmanager
def small_tmpfs(size: str = "1m") -> Iterator[Path]:
    """A file system of `size` that is gone afterwards; needs root."""
    folder = Path(tempfile.mkdtemp(prefix="small_"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def _start_node(job: _Job, node: int, logs_dir: Path) -> RunningCommand:
    fault = job.fault
    values = {"port": job.ports[0], "port2": job.ports[1], "node": node, "work": job.work, "tmpfs": job.tmpfs}
    options = fault.launcher_args or ("--master-port={port}",)
    ours = [f"--nproc-per-node={fault.nproc}", f"--aggregator-port={job.ports[2]}"]
    if fault.nnodes > 1:
        ours.append("--aggregator-bind-host=127.0.0.1")
        options = fault.launcher_args or (
            f"--nnodes={fault.nnodes}",
            "--node-rank={node}",
            "--master-addr=127.0.0.1",
            "--master-port={port}",
        )
    filled = [option.format(**values) for option in (*options, fault.script, *fault.args)]
    return start_run(
        ours + filled,
        cwd=job.work,
        run_name=RUN_NAME,
        logs_dir=logs_dir,
        environ=fault.env,
        name=f"node_{node}",
        mark=job.mark,
    )


def _disturb(job: _Job) -> frozenset[int]:
    """Carry out the action; returns the nodes whose launcher it killed."""
    action = job.fault.action
    assert action is not None
    first = job.launchers[0]
    sign = action.when_stdout.encode()
    first.wait_for(
        lambda: any(sign in launcher.stdout() for launcher in job.launchers), action.when_stdout, within_s=90
    )
    _pause(job, action.delay)
    victims = _victims(job, action)
    for pid in victims:
        with contextlib.suppress(LookupError):  # the death of the one before may have ended it already
            first.signal(pid, signal_number(action.signal))
    return frozenset({action.node}) if job.launchers[action.node].process.pid in victims else frozenset()


def _victims(job: _Job, action: Action) -> list[int]:
    launcher = job.launchers[action.node].process.pid
    if job.case.target == "launcher":
        return [launcher]
    agent = job.find("torch.distributed.run", launcher)
    assert agent is not None, "torchrun is not running any more"
    if job.case.target == "torchrun":
        return [agent]
    workers = [process.pid for process in find_marked(MARK, job.mark) if process.parent_pid == agent]
    return [launcher, agent, *workers]


def _wait_for_end(job: _Job) -> bool:
    """Wait for every launcher. Past the fault's limit torchrun (not the launcher) is told to stop, and later killed.

    Returns whether that was not needed.
    """
    started_s = time.monotonic()
    limits = [(job.fault.limit_seconds, "SIGTERM"), (job.fault.limit_seconds + job.fault.kill_after_seconds, "SIGKILL")]
    for at_s, name in limits:
        if _have_ended(job, at_s - (time.monotonic() - started_s)):
            return name == "SIGTERM"
        for launcher in job.launchers:
            agent = job.find("torch.distributed.run", launcher.process.pid)
            if agent is not None:
                with contextlib.suppress(LookupError):
                    launcher.signal(agent, signal_number(name))
    if not _have_ended(job, DEADLINE_S - (time.monotonic() - started_s)):
        job.launchers[0].finish(within_s=0)
    return False


def _have_ended(job: _Job, within_s: float) -> bool:
    for launcher in job.launchers:
        deadline_s = time.monotonic() + max(0.0, within_s)
        try:
            launcher.finish(within_s=max(0.0, within_s))
        except TimeoutError:
            return False
        within_s = deadline_s - time.monotonic()
    return True


def _what_is_left(job: _Job) -> tuple[str, ...]:
    """Commands still alive half a second after the last launcher ended, by our mark or by the run's own nonce."""
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not find_marked(MARK, job.mark), "nothing left", within_s=0.5)
    return tuple(process.command for process in find_marked(MARK, job.mark))


def _pause(job: _Job, seconds: float) -> None:
    """Let the job run on for a while, as a person would before pressing Ctrl-C."""
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not job.launchers[0].is_alive(), "delay", within_s=seconds)
