"""Promises run on the loop that the daemon runs on, and under the same watch as the daemon's own tests."""

from tests.daemon.conftest import _no_task_is_left, _nothing_blocks, pytest_asyncio_loop_factories, run_dir

__all__ = ["_no_task_is_left", "_nothing_blocks", "pytest_asyncio_loop_factories", "run_dir"]
