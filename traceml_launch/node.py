"""One node's launch with all its parts, wired together; `supervise` starts it and `ending` ends it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from traceml_client.protocol import messages
from traceml_client.protocol.errors import ProtocolError, Refused
from traceml_client.protocol.handover import HandoverGrant, HandoverRequest
from traceml_launch.aggregator.handing_in import HandingIn
from traceml_launch.aggregator.manifest_writer import ManifestWriter
from traceml_launch.aggregator.telemetry import Telemetry
from traceml_launch.assignment import Assignment
from traceml_launch.folder import shared_token
from traceml_launch.folder.placement import Place, Placement
from traceml_launch.output.console import Console
from traceml_launch.output.foreground import Foreground
from traceml_launch.output.streams import NodeStreams, StreamName, TailBuffer
from traceml_launch.output.terminal import TerminalWriter
from traceml_launch.ranks import worker_files
from traceml_launch.ranks.torchrun_table import TAIL_BYTES
from traceml_launch.ranks.workers import Worker, WorkerTable
from traceml_launch.stop_plan import StopPlan
from traceml_launch.system.kernel_evidence import KernelEvidence
from traceml_launch.training import Training

WELCOME_S: Final = 5.0
"""Between the ready line of our own daemon and its welcome."""
TERMINAL_STALL_S: Final = 2.0
"""A terminal that takes nothing for this long at the very end does not get the rest."""


class Node:
    """Made in the running loop."""

    def __init__(self, assignment: Assignment) -> None:
        config = assignment.config
        self.assignment = assignment
        self.config = config
        self.me = assignment.me
        self._token = assignment.token
        self.terminals: dict[StreamName, TerminalWriter] = {"stdout": TerminalWriter(1), "stderr": TerminalWriter(2)}
        self.console = Console(self.terminals["stderr"], is_quiet=config.is_quiet, has_color=config.has_color)
        folder, problem = assignment.folder, self.console.problem
        self.manifest = ManifestWriter(folder.run_dir, self.me.holder, on_problem=problem) if folder else None
        """Of the run that this launcher owns."""
        self.kernel = KernelEvidence()
        self.foreground = Foreground()
        self.hurried = asyncio.Event()
        """A signal came after training's end: what is still to do shall be short."""
        self.spared: set[int] = {self.me.holder.pid, assignment.warden.pid, *self.me.children_before}
        """Processes that are never taken for leftovers of the run."""
        self.torchrun_stderr = TailBuffer(TAIL_BYTES)
        self.streams = (
            NodeStreams(self.terminals, max_log_bytes=config.max_log_bytes) if config.is_output_saved else None
        )
        self.workers = WorkerTable(self._on_death)
        self.telemetry = Telemetry(
            token=self.token,
            hello=self._hello,
            on_salvage_ack=lambda ack: self.handing_in.on_ack(ack),
            on_problem=problem,
            trust=config.tls_trust,
        )
        self.handing_in = HandingIn(self.workers, self.telemetry, on_problem=problem)
        self.placement = Placement(config, folder, self.telemetry, on_placed=self._on_placed, on_problem=problem)
        self.training = Training(
            plan=StopPlan(shutdown_timeout_s=config.shutdown_timeout_s, grace_s=config.grace_s),
            workers=self.workers,
            telemetry=self.telemetry,
            foreground=self.foreground,
            is_known_child=self._is_known_child,
            on_hurry=self.hurried.set,
        )

    async def place_for(self, request: HandoverRequest) -> Place:
        """Waits until it is known where this node's files go and where the daemon is, or that there is none."""
        await self.telemetry.started.wait()
        if self.telemetry.process is not None:
            # The daemon refuses ranks of a node that it does not know yet.
            with contextlib.suppress(Refused, ProtocolError):
                await self.telemetry.welcome(timeout_s=WELCOME_S)
        return await self.placement.place_for(request)

    def token(self) -> str:
        """The run's secret as far as this node knows it; looked for where another node's run folder may be shared."""
        config = self.config
        if not self._token and config.is_multi_node and not config.attach:
            self._token = shared_token.find(config)
        return self._token

    def grant(self, worker: Worker, place: Place) -> HandoverGrant:
        """What a worker is about to get; the daemon is told of it, and torchrun's own files are linked."""
        config, telemetry = self.config, self.telemetry
        if config.are_streams_torchruns:
            worker_files.link_streams(worker)
        self._tell_start(worker)
        tls_file, tls_name = config.tls_trust or ("", "")
        return HandoverGrant(
            run_id=place.run_id,
            run_name=place.run_name,
            node_index=place.node_index,
            attempt=worker.attempt,
            has_streams=self.streams is not None and not config.are_streams_torchruns,
            rank_dir=str(worker.rank_dir),
            daemon_host=telemetry.link.host,
            daemon_port=telemetry.link.port if telemetry.is_alive else 0,
            token=self.token(),
            trace_max_steps=-1 if config.trace_max_steps is None else config.trace_max_steps,
            tls_trust=tls_file,
            tls_name=tls_name,
        )

    def _tell_start(self, worker: Worker) -> None:
        request = worker.request
        self.telemetry.link.send(
            messages.RankStarted(
                local_rank=request.local_rank,
                attempt=worker.attempt,
                rank=request.rank,
                world_size=request.world_size,
                local_world_size=request.local_world_size,
                torch_restart_count=request.torch_restart_count,
                pid=request.pid,
                start_ticks=request.start_ticks,
                started_ns=worker.started_ns,
                wall_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
            )
        )

    async def close(self) -> None:
        """Give everything back, children excepted: `ending` has seen to those. Legal twice."""
        await self.training.close()
        await self.handing_in.close()
        await self.placement.close()
        await self.telemetry.close()
        self.workers.close()
        if self.streams is not None:
            self.streams.close()
        self.foreground.close()
        for terminal in self.terminals.values():
            terminal.close(stall_s=TERMINAL_STALL_S)

    def _on_death(self, worker: Worker) -> None:
        assert worker.died_ns is not None
        assert worker.death_order is not None
        self.telemetry.link.send(
            messages.RankExited(
                local_rank=worker.request.local_rank,
                attempt=worker.attempt,
                died_ns=worker.died_ns,
                death_order=worker.death_order,
            )
        )
        worker_files.keep_error(worker)
        self.handing_in.begin(worker)

    def _is_known_child(self, pid: int) -> bool:
        torchrun = self.training.torchrun
        is_torchrun = torchrun is not None and pid == torchrun.pid
        return is_torchrun or pid in self.spared or pid in self.workers.pids()

    def _on_placed(self, place: Place) -> None:
        if self.streams is not None:
            self.streams.open_merged(place.node_dir)
        self.console.say(f"Run {place.run_name}: {place.run_dir}")
        if place.is_shared and not self._token:
            self._token = shared_token.read(place.run_dir)
        if self._token:
            self.telemetry.link.prove()

    def _hello(self) -> messages.NodeHello:
        config, folder = self.config, self.assignment.folder
        return messages.NodeHello(
            version=messages.PROTOCOL_MAJOR,
            run=folder.run_id if folder is not None else config.run_name,
            proof=b"",
            node_rank=messages.NUMBER_ME if config.node_rank is None else config.node_rank,
            nnodes=config.nnodes_min,
            local_world_size=config.num_local_ranks,
            host=self.me.holder.host,
            pid=self.me.holder.pid,
            start_ticks=self.me.holder.start_ticks,
            is_owner=self.assignment.is_owner,
        )
