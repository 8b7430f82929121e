"""What every test gets: a check that it leaves nothing behind, and a skip where the machine has no torch."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import settings

from tests.harness.processes import hear_signals_again, wait_until

LEAK_PATIENCE_S = 3.0
"""How long threads, descriptors and children of a test may take to go away after it."""

HAS_TORCH = importlib.util.find_spec("torch") is not None


# How long an example takes says something of the machine's load and nothing of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_configure() -> None:
    """Tests send signals to what they start, so it must be able to hear them, however we were started."""
    hear_signals_again()
    hypothesis.settings.register_profile("any speed", deadline=None)  # a busy machine is no failure
    hypothesis.settings.load_profile("any speed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need torch are skipped, with the reason, where there is none."""
    if HAS_TORCH:
        return
    skip = pytest.mark.skip(reason="needs torch")
    for item in items:
        if item.get_closest_marker("torch") or item.get_closest_marker("e2e"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test after which there are more threads, open descriptors or child processes than before it."""
    threads, descriptors, children = set(threading.enumerate()), _descriptors(), _children()
    yield
    with contextlib.suppress(TimeoutError):
        wait_until(
            lambda: (
                set(threading.enumerate()) <= threads
                and len(_descriptors()) <= len(descriptors)
                and _children() <= children
            ),
            "leaks gone",
            within_s=LEAK_PATIENCE_S,
            tick_s=0.01,
        )
    left_threads = [thread.name for thread in threading.enumerate() if thread not in threads]
    assert left_threads == [], f"threads left behind: {left_threads}"
    left_children = _children() - children
    assert left_children == set(), f"child processes left behind: {left_children}"
    left = {fd: target for fd, target in _descriptors().items() if fd not in descriptors}
    assert len(_descriptors()) <= len(descriptors), f"descriptors left open: {left}"


def _descriptors() -> dict[int, str]:
    """Open descriptors of this process and what they lead to, the listing's own left out."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _children() -> set[int]:
    """Children of this process that are still there, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found
