"""Every daemon test runs on uvloop, must not block the loop, and must leave no task behind.

Threads, descriptors and children are watched for all tests in `tests/conftest.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop
from blockbuster import BlockBuster, blockbuster_ctx

import traceml_daemon
from tests.harness.until import until

uvloop.new_event_loop().close()  # the first one of a process opens a pipe for signals that stays


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _nothing_blocks() -> Iterator[BlockBuster]:
    """Fails a test in which the daemon's own code blocks the event loop; what tests themselves do is theirs."""
    with blockbuster_ctx(traceml_daemon) as blockbuster:
        yield blockbuster


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    before = asyncio.all_tasks()
    yield
    await loop.shutdown_default_executor()
    await until(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()}, "no task is left", within_s=5)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "test-run"
