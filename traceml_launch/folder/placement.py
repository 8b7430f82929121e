"""Where this node's files go and which node of the run it is: known at once to the owner, to others by the daemon."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceml_client.protocol import launch, messages
from traceml_client.protocol.errors import ConfigError, ProtocolError, Refused
from traceml_client.protocol.handover import HandoverRequest
from traceml_launch.aggregator.own_daemon import READY_TIMEOUT_S
from traceml_launch.aggregator.telemetry import Telemetry
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.folder import peer_folder
from traceml_launch.folder.run_folder import RunFolder, make_dirs
from traceml_launch.waiting import unless

WELCOME_S: Final = 10.0
"""For another node's daemon to appear; after it this node keeps its files without knowing the run's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    run_name: str
    run_id: str
    """Empty where no daemon told it."""
    run_dir: Path
    node_index: int
    is_shared: bool
    """The daemon sees this node's files in its own run folder."""

    @property
    def node_dir(self) -> Path:
        return self.run_dir / launch.layout_node_dir(self.node_index)


class Placement:
    """Settled exactly once; `on_placed` is called then, from the loop, with the node's folder made."""

    def __init__(
        self,
        config: LaunchConfig,
        folder: RunFolder | None,
        telemetry: Telemetry,
        *,
        on_placed: Callable[[Place], None],
        on_problem: Callable[[str], None],
    ) -> None:
        """`folder`: the owner's; null for who joins somebody else's run."""
        loop = asyncio.get_running_loop()
        self._config = config
        self._folder = folder
        self._telemetry = telemetry
        self._on_placed = on_placed
        self._on_problem = on_problem
        self._place: asyncio.Future[Place] = loop.create_future()
        self._first_request: asyncio.Future[HandoverRequest | None] = loop.create_future()
        self._is_over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """At once where the owner knows its number; else wait for the daemon, but not for ever."""
        if self._folder is not None and self._config.node_rank is not None:
            self._settle(_own_place(self._folder, self._config.node_rank))
        else:
            self._task = asyncio.get_running_loop().create_task(self._find())

    async def place_for(self, request: HandoverRequest) -> Place:
        """For a worker that waits for its pipes."""
        if not self._first_request.done():
            self._first_request.set_result(request)
        return await asyncio.shield(self._place)

    async def final(self) -> Place:
        """Training is over: whoever has not come, daemon or worker, is not waited for any longer."""
        self._is_over.set()
        if not self._first_request.done():
            self._first_request.set_result(None)
        return await asyncio.shield(self._place)

    async def close(self) -> None:
        """Legal twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _find(self) -> None:
        config, folder = self._config, self._folder
        welcome = await self._welcome(timeout_s=WELCOME_S if folder is None else READY_TIMEOUT_S)
        if folder is not None:
            self._settle(_own_place(folder, welcome.node_index if welcome is not None else 0))
            return
        if welcome is not None:
            run_name, run_id, node_index = welcome.run_name, welcome.run_id, welcome.node_index
        else:
            run_name, run_id, node_index = config.run_name, "", await self._guess_index()
        try:
            run_dir, is_shared = peer_folder.join(config, run_name=run_name, run_id=run_id, node_index=node_index)
        except ConfigError as error:
            run_dir, is_shared = Path(tempfile.mkdtemp(prefix="traceml-run-")), False
            self._on_problem(f"{error}; this node's files are in {run_dir}")
        self._settle(
            Place(run_name=run_name, run_id=run_id, run_dir=run_dir, node_index=node_index, is_shared=is_shared)
        )

    async def _welcome(self, *, timeout_s: float) -> messages.Welcome | None:
        try:
            return await unless(self._telemetry.welcome(timeout_s=timeout_s), self._is_over)
        except (Refused, ProtocolError):
            return None

    async def _guess_index(self) -> int:
        """Without a daemon: the node rank, else where torchrun has put this node's workers."""
        if self._config.node_rank is not None:
            return self._config.node_rank
        request = await self._first_request
        return request.rank // max(1, request.local_world_size) if request is not None else 0

    def _settle(self, place: Place) -> None:
        try:
            make_dirs(place.node_dir, option="--logs-dir")
        except ConfigError as error:
            # Training goes on; every file that is missing because of it is counted where it should have been.
            self._on_problem(str(error))
        self._on_placed(place)
        self._place.set_result(place)


def _own_place(folder: RunFolder, node_index: int) -> Place:
    return Place(
        run_name=folder.run_name, run_id=folder.run_id, run_dir=folder.run_dir, node_index=node_index, is_shared=True
    )
