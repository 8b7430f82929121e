"""The daemon as a process of its own, started as a launcher or a person starts it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.harness.torchrun import clean_environment
from traceml_client.protocol.launch import AGGREGATOR_DIR, DaemonLaunch
from traceml_client.protocol.manifest import Manifest, read_manifest
from traceml_daemon.run.run_manifest import start_ticks

WITHIN_S = 20.0
_OWN_START_TICKS = start_ticks(os.getpid())


@dataclass(kw_only=True)
class DaemonProcess:
    """What the starters below yield. Killed when their block is left."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    ready: dict[str, Any]
    """The ready line, or what stands in its place."""

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    def manifest(self) -> Manifest:
        return read_manifest(self.run_dir)

    async def exit_code(self, *, within_s: float = WITHIN_S) -> int:
        return await asyncio.to_thread(self.process.wait, within_s)


def launch_order(run_dir: Path, **changes: Any) -> DaemonLaunch:
    """A single-node run of two ranks under this very process."""
    values: dict[str, Any] = {
        "run_name": "test-run",
        "run_id": "run-id-1",
        "run_dir": str(run_dir),
        "token": "a secret",
        "bind_host": "127.0.0.1",
        "port": 0,
        "is_port_required": False,
        "nnodes": 1,
        "nproc_per_node": 2,
        "finalize_timeout_s": 20.0,
        "settle_s": 0.2,
        "has_history": True,
        "created_ns": time.time_ns(),
        "launcher_pid": os.getpid(),
        "launcher_start_ticks": _OWN_START_TICKS,
    }
    return DaemonLaunch(**{**values, **changes})


@contextlib.asynccontextmanager
async def supervised_daemon(order: DaemonLaunch, *, num_descriptors: int | None = None) -> AsyncIterator[DaemonProcess]:
    """`python -m traceml_daemon supervise`, up to its ready line; it may have so many descriptors and no more."""
    run_dir = Path(order.run_dir)
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    for folder in (run_dir, run_dir / "nodes", run_dir / AGGREGATOR_DIR):
        folder.mkdir(mode=0o700, exist_ok=True)
    config_read, config_write = os.pipe()
    ready_read, ready_write = os.pipe()
    with os.fdopen(config_write, "wb") as config:
        config.write(msgspec.json.encode(order))
    process = _spawn_supervised(config_read, ready_write, num_descriptors)
    os.close(config_read)
    os.close(ready_write)
    with os.fdopen(ready_read, "rb") as ready:
        async with _ended_after(process):
            line = await asyncio.to_thread(ready.readline)
            yield DaemonProcess(process=process, run_dir=run_dir, ready=json.loads(line))


@contextlib.asynccontextmanager
async def serve_process(
    logs_dir: Path, *options: str, command: Sequence[str] = ("traceml-daemon",), redirection: str = "", **variables: str
) -> AsyncIterator[DaemonProcess]:
    """`traceml-daemon`, up to its ready line; `ready` is empty if it ended before, or if its output goes elsewhere.

    `redirection`: as a shell writes it, `2>&-`.
    """
    words = [*command, "--logs-dir", str(logs_dir), *options]
    process = _spawn_serving(
        ["bash", "-c", f'exec "$0" "$@" {redirection}', *words] if redirection else words, variables
    )
    assert process.stdout is not None
    async with _ended_after(process):
        line = await asyncio.to_thread(process.stdout.readline)
        ready = json.loads(line) if line else {}
        yield DaemonProcess(process=process, run_dir=Path(ready.get("run_dir") or logs_dir), ready=ready)


def _spawn_supervised(config_fd: int, ready_fd: int, num_descriptors: int | None) -> subprocess.Popen[bytes]:
    limit = [] if num_descriptors is None else ["prlimit", f"--nofile={num_descriptors}"]
    arguments = ("supervise", "--config-fd", str(config_fd), "--ready-fd", str(ready_fd))
    return subprocess.Popen(
        [*limit, sys.executable, "-P", "-m", "traceml_daemon", *arguments],
        pass_fds=(config_fd, ready_fd),
        env=clean_environment(),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


def _spawn_serving(words: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    environment = clean_environment(**variables)
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@contextlib.asynccontextmanager
async def _ended_after(process: subprocess.Popen[bytes]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


async def run_daemon_command(*arguments: str, within_s: float = WITHIN_S) -> subprocess.CompletedProcess[bytes]:
    """`python -m traceml_daemon ...` to its end."""
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", "-m", "traceml_daemon", *arguments],
        env=clean_environment(),
        capture_output=True,
        timeout=within_s,
        check=False,
    )
