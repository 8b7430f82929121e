"""The real daemon inside a test: its own server on a free port, its own store and files, any clock."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.clock import HandClock
from tests.harness.until import until
from tests.harness.wire import hang_up_all
from traceml_client.protocol.launch import AGGREGATOR_DIR, DATABASE_FILE
from traceml_client.protocol.manifest import LeaseHolder, Manifest, read_manifest
from traceml_daemon.clock import Clock, LoopClock
from traceml_daemon.config import RunConfig, ServeConfig
from traceml_daemon.peers.rejections import Rejections
from traceml_daemon.peers.server import Server
from traceml_daemon.run.runs import Runs, ServedRuns
from traceml_daemon.run.session import Session

HOLDER = LeaseHolder(host="here", pid=1, start_ticks=1)


@dataclass(kw_only=True)
class RunningDaemon:
    """What `run_daemon` yields."""

    port: int
    server: Server
    runs: Runs
    session: Session
    rejections: Rejections

    @property
    def run_dir(self) -> Path:
        return self.session.config.run_dir

    @property
    def database(self) -> Path:
        return self.run_dir / DATABASE_FILE

    def manifest(self) -> Manifest:
        return read_manifest(self.run_dir)

    def json(self, name: str) -> Any:
        return json.loads((self.run_dir / name).read_bytes())

    async def sealed(self, clock: HandClock, *, limit_s: float) -> float:
        """Move the clock until the run is sealed; return how many of its seconds that took."""
        return await clock.run_until(lambda: self.session.core.phase == "sealed", "the run is sealed", limit_s=limit_s)

    async def finalized(self, *, within_s: float = 20.0) -> Manifest:
        """Wait for the last file; return the manifest."""
        await until(self.session.finalized.done, "the run is finalized", within_s=within_s)
        return self.manifest()


def run_config(run_dir: Path, **changes: Any) -> RunConfig:
    """A single-node run of two ranks under a launcher, with a token and short times."""
    values: dict[str, Any] = {
        "run_name": "test-run",
        "run_id": "run-id-1",
        "run_dir": run_dir,
        "token": "a secret",
        "nnodes": 1,
        "nproc_per_node": 2,
        "finalize_timeout_s": 30.0,
        "settle_s": 0.2,
        "created_ns": time.time_ns(),
    }
    return RunConfig(**{**values, **changes})


@contextlib.asynccontextmanager
async def run_daemon(
    config: RunConfig,
    *,
    clock: Clock | None = None,
    **limits: Any,
) -> AsyncIterator[RunningDaemon]:
    """Serve one run as `supervise` does, until the block is left. `limits` are those of `Server`."""
    for name in ("nodes", AGGREGATOR_DIR):
        (config.run_dir / name).mkdir(parents=True, exist_ok=True)
    clock = clock or LoopClock()
    rejections = Rejections()
    runs = Runs(token=config.token, clock=clock, holder=HOLDER, rejections=rejections)
    runs.is_token_offered = config.is_token_offered
    server = Server(runs, clock, rejections, **{"max_connections": 1000, "max_strangers": 100, **limits})
    try:
        session = await runs.open(config)
        port = await server.listen("127.0.0.1", 0)
        session.on_seal = server.stop_listening
        yield RunningDaemon(port=port, server=server, runs=runs, session=session, rejections=rejections)
    finally:
        hang_up_all()
        await server.close()
        await runs.close()


@dataclass(kw_only=True)
class ServingDaemon:
    """What `run_serving_daemon` yields."""

    port: int
    server: Server
    runs: ServedRuns
    logs_dir: Path
    rejections: Rejections

    def names(self) -> list[str]:
        """Of the live runs."""
        return sorted(session.config.run_name for session in self.runs.sessions.values())

    def manifest(self, run_name: str) -> Manifest:
        return read_manifest(self.logs_dir / run_name)

    async def finalized(self, run_name: str) -> Manifest:
        """Wait until the run is over and forgotten; return its manifest."""
        await until(lambda: run_name not in self.names(), f"{run_name} is finalized", within_s=20)
        return self.manifest(run_name)


@contextlib.asynccontextmanager
async def run_serving_daemon(config: ServeConfig, *, clock: Clock | None = None) -> AsyncIterator[ServingDaemon]:
    """Serve many runs as `traceml serve` does, until the block is left."""
    config.logs_dir.mkdir(parents=True, exist_ok=True)
    clock = clock or LoopClock()
    rejections = Rejections()
    runs = ServedRuns(config, clock=clock, holder=HOLDER, rejections=rejections)
    server = Server(runs, clock, rejections)
    try:
        port = await server.listen("127.0.0.1", 0)
        if config.run_name is not None:
            await runs.open_default()
        yield ServingDaemon(port=port, server=server, runs=runs, logs_dir=config.logs_dir, rejections=rejections)
    finally:
        hang_up_all()
        await server.close()
        await runs.close()
