"""Exits of processes that are not our children, and signals that cannot hit another process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.harness.processes import wait_until
from traceml_client.protocol.process_identity import start_ticks
from traceml_launch.system import pidfds, processes

PARENT = """
import os, sys
child_end, parent_end = map(int, sys.argv[1:])
child = os.fork()
if child == 0:
    os.read(child_end, 1)
    {ending}
print(child, flush=True)
os.read(parent_end, 1)
os.waitpid(child, 0)
print("reaped", flush=True)
os.read(parent_end, 1)
"""


class Grandchild:
    """A process whose parent reaps it only when told to."""

    def __init__(self, ending: str) -> None:
        child_read, self._child_fd = os.pipe()
        parent_read, self._parent_fd = os.pipe()
        self._parent = subprocess.Popen(
            [sys.executable, "-S", "-c", PARENT.format(ending=ending), str(child_read), str(parent_read)],
            pass_fds=(child_read, parent_read),
            stdout=subprocess.PIPE,
            text=True,
        )
        os.close(child_read)
        os.close(parent_read)
        assert self._parent.stdout is not None
        self.pid = int(self._parent.stdout.readline())
        pidfd = pidfds.open_pidfd(self.pid)
        assert pidfd is not None
        self.pidfd = pidfd

    def end(self) -> None:
        os.write(self._child_fd, b"x")
        assert pidfds.wait_gone_blocking(self.pidfd, timeout_s=10.0)

    def let_parent_reap(self) -> None:
        os.write(self._parent_fd, b"x")
        assert self._parent.stdout is not None
        assert self._parent.stdout.readline() == "reaped\n"

    def close(self) -> None:
        os.close(self._child_fd)
        os.close(self._parent_fd)
        self._parent.kill()
        self._parent.communicate()
        os.close(self.pidfd)


@pytest.fixture(params=[("os._exit(5)", 5 << 8), ("os.kill(os.getpid(), 9)", 9)])
def grandchild(request: pytest.FixtureRequest) -> Iterator[tuple[Grandchild, int]]:
    ending, status = request.param
    grandchild = Grandchild(ending)
    yield grandchild, status
    grandchild.close()


def test_how_it_ended_is_known_before_and_after_its_parent_reaps_it(grandchild: tuple[Grandchild, int]) -> None:
    child, status = grandchild
    assert not pidfds.is_gone(child.pidfd)
    child.end()
    stat = processes.read_stat(child.pid)
    assert stat is not None
    assert (stat.is_zombie, stat.wait_status) == (True, status)
    child.let_parent_reap()
    assert processes.read_stat(child.pid) is None
    told = pidfds.wait_status(child.pidfd)
    if told is None:
        pytest.skip("this kernel does not tell how a reaped process ended")
    assert told == status


def test_a_process_of_somebody_else_is_not_reaped(grandchild: tuple[Grandchild, int]) -> None:
    child, status = grandchild
    child.end()
    assert pidfds.reap(child.pidfd) is None
    stat = processes.read_stat(child.pid)
    assert stat is not None
    assert stat.wait_status == status


def test_an_own_child_is_reaped_once() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"])
    pidfd = os.pidfd_open(child.pid)
    assert pidfds.wait_gone_blocking(pidfd, timeout_s=10.0)
    assert pidfds.reap(pidfd) == 3 << 8
    assert pidfds.reap(pidfd) is None
    os.close(pidfd)
    child.poll()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


async def test_two_tasks_may_wait_for_one_process(sleeper: subprocess.Popen[bytes]) -> None:
    pidfd = os.pidfd_open(sleeper.pid)
    assert not await pidfds.wait_gone(pidfd, timeout_s=0.01)
    waits = [asyncio.ensure_future(pidfds.wait_gone(pidfd, timeout_s=10.0)) for _ in range(2)]
    await asyncio.sleep(0)
    sleeper.kill()
    assert await asyncio.gather(*waits) == [True, True]
    assert await pidfds.wait_gone(pidfd)
    os.close(pidfd)


@pytest.mark.parametrize(
    ("status", "parts"), [(0, (0, None)), (7 << 8, (7, None)), (9, (None, "SIGKILL")), (11 | 0x80, (None, "SIGSEGV"))]
)
def test_a_wait_status_in_words(status: int, parts: tuple[int | None, str | None]) -> None:
    assert pidfds.split_status(status) == parts


def test_the_runs_processes_are_found_by_their_mark_and_signalled_by_identity() -> None:
    ours = subprocess.Popen(["sleep", "60"], env={"TRACEML_RUN_NONCE": "nonce-1"}, start_new_session=True)
    others = subprocess.Popen(["sleep", "60"], env={"TRACEML_RUN_NONCE": "nonce-2"})
    try:
        wait_until(lambda: processes.command_of(ours.pid) == "sleep 60", "it runs", within_s=10.0)
        (found,) = processes.of_run("nonce-1")
        assert (found.pid, found.session, found.parent_pid) == (ours.pid, ours.pid, os.getpid())
        assert processes.of_run("nonce-1", spared={ours.pid}) == []
        assert not processes.signal_process(found.pid, found.start_ticks + 1, signal.SIGKILL)
        assert ours.poll() is None
        assert processes.signal_process(found.pid, found.start_ticks, signal.SIGKILL)
        assert ours.wait(10) == -signal.SIGKILL
        assert others.poll() is None
    finally:
        for child in (ours, others):
            child.kill()
            child.wait()


def test_a_descendant_without_the_mark_is_found_through_who_adopted_it() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", "import subprocess; subprocess.run(['env', '-i', 'sleep', '60'])"],
        env={"TRACEML_RUN_NONCE": "nonce-3"},
    )
    try:
        wait_until(lambda: bool(processes.children_of(parent.pid)), "it has a child", within_s=10.0)
        (child,) = processes.children_of(parent.pid)
        wait_until(lambda: processes.command_of(child) == "sleep 60", "the child runs", within_s=10.0)
        assert [each.pid for each in processes.of_run("nonce-3")] == [parent.pid]
        assert {each.pid for each in processes.of_run("nonce-3", adopter_pid=os.getpid())} == {parent.pid, child}
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.wait()


def test_a_process_that_is_not_there() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert pidfds.open_pidfd(child.pid) is None
    assert processes.read_stat(child.pid) is None
    assert start_ticks(child.pid) == 0
    assert processes.command_of(child.pid) == ""
    assert processes.variable_of(child.pid, "PATH") is None
    assert processes.children_of(child.pid) == []
