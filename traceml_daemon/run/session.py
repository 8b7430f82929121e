"""One run: the shell around its core. Peers' messages become events, commands become files, one timer keeps time.

Nothing here waits: what takes time (the database, files, reports) is put in order elsewhere; the end of a run is one
task (`sealing`). Order at the end: no new peers, drain, seal, close the database, reports, manifest, launchers told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from traceml_client.protocol import messages
from traceml_client.protocol.atomic_files import remove_leftovers
from traceml_client.protocol.launch import AGGREGATOR_DIR
from traceml_client.protocol.manifest import LeaseHolder, rfc3339
from traceml_client.protocol.messages import NodeHello, RankHello, RunFinalized, Welcome
from traceml_client.protocol.node import NodeReport
from traceml_daemon.clock import Clock, Timer
from traceml_daemon.config import RunConfig
from traceml_daemon.core import events as ev
from traceml_daemon.core.finalize import RunCore
from traceml_daemon.core.settings import CoreSettings
from traceml_daemon.errors import NotAdmitted
from traceml_daemon.own_faults import OwnFaults
from traceml_daemon.peers.connection import Connection
from traceml_daemon.peers.intake import Intake
from traceml_daemon.peers.members import NodePeer, RankPeer
from traceml_daemon.peers.rejections import Rejections
from traceml_daemon.peers.roster import NodeSlot, Roster
from traceml_daemon.peers.slots import RankSlot
from traceml_daemon.run.run_files import RunFiles
from traceml_daemon.run.run_manifest import RunManifest
from traceml_daemon.run.sealing import Sealing
from traceml_daemon.run.taking_up import take_up
from traceml_daemon.storage.rows import FRAMES_REJECTED, INTERRUPTED_NS, TRAINING_STARTED_NS
from traceml_daemon.storage.store import Sink

_MAX_WARNINGS: Final = 100
_KEPT: Final = ("run_name", "run_id", "created_ns", "nnodes", "nproc_per_node", "is_direct", "has_html")
"""Of the run's configuration in its database: an offline finalization may find no manifest."""

_log = logging.getLogger("traceml_daemon")


class Session:
    """One run from its first peer to its last file."""

    def __init__(
        self,
        config: RunConfig,
        store: Sink,
        clock: Clock,
        *,
        holder: LeaseHolder,
        rejections: Rejections,
        loop_faults: OwnFaults,
    ) -> None:
        self.config = config
        self.clock = clock
        self.store = store
        self.roster = Roster(config)
        self.files = RunFiles(config.run_dir)
        self.manifest = RunManifest(config, self.files, clock, holder)
        self.intake = Intake(self.roster, store, has_history=config.has_history, on_heard=self._hear)
        self.core = RunCore(_core_settings(config, is_resumed=bool(store.recovered.meta)), clock.now_s())
        self.node_reports: dict[int, NodeReport] = {}
        self.training_started_ns: int | None = None
        self.finalized: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the last file of the run is written."""
        self.on_seal: Callable[[], None] = lambda: None
        """Called when no more telemetry is taken."""
        self._rejections = rejections
        self._loop_faults = loop_faults
        self._rejected_before = rejections.num_frames - (store.recovered.number(FRAMES_REJECTED) or 0)
        self._rejected_kept = self.num_frames_rejected
        self._warnings: list[str] = []
        self._sealing = Sealing(self)
        self._timer: Timer | None = None
        self._armed_for: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Take up what an earlier daemon stored, write the first manifest and the run's facts.

        Raises:
            StoreError: what was stored is damaged.
        """
        config = self.config
        events = take_up(self.store.recovered, self.roster)
        started_ns = self.store.recovered.number(TRAINING_STARTED_NS)
        self._sealing.interrupted_ns = self.store.recovered.number(INTERRUPTED_NS)
        facts = {name: getattr(config, name) for name in _KEPT}
        for key, value in (*facts.items(), ("is_authenticated", bool(config.token))):
            self.store.put_meta(key, msgspec.json.encode(value).decode())
        self.files.submit(remove_leftovers, config.run_dir, config.run_dir / AGGREGATOR_DIR)
        self.manifest.update()
        self.files.submit(self.files.reserve.take, config.nnodes * config.nproc_per_node)
        if started_ns is not None:
            self.start_training(started_ns)
        self.manifest.keep_renewing()
        self.apply(*events, ev.DataDrained())

    async def close(self) -> None:
        """Stop at once, wherever the run stands; what is stored stays. Legal twice, and after `finalized`."""
        self.manifest.stop_renewing()
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.seal()
        await self.files.close()

    # --- admission ------------------------------------------------------------------------------------------------

    def admit_rank(self, hello: RankHello, connection: Connection, *, has_proven: bool = True) -> RankPeer:
        """Let a rank in and welcome it. Raises NotAdmitted."""
        self._refuse_if_over()
        slot = self.roster.claim_rank(hello, has_proven=has_proven)
        self._take_over(slot, connection)
        slot.hear(self.clock.wall_ns())
        self.keep(slot)
        peer = RankPeer(self, slot, connection)
        connection.admit(peer)
        node_index, _, attempt = slot.incarnation
        connection.send(Welcome(self.config.run_id, self.config.run_name, node_index, attempt, slot.next_seq))
        self.intake.acknowledge_arrived(slot)
        self.intake.flow.add(connection)
        if self.core.is_direct:
            self.start_training(self.clock.wall_ns())
        self.apply(ev.RankJoined(slot.incarnation, slot.place))
        return peer

    def admit_node(self, hello: NodeHello, connection: Connection, *, has_proven: bool = True) -> NodePeer:
        """Let a launcher in and welcome it. Raises NotAdmitted."""
        self._refuse_if_over()
        node = self.roster.claim_node(hello, has_proven=has_proven)
        self._take_over(node, connection)
        peer = NodePeer(self, node, connection)
        connection.admit(peer)
        run_dir = str(self.config.run_dir)
        connection.send(Welcome(self.config.run_id, self.config.run_name, node.node_index, 0, (0, 0), run_dir))
        self._note_authentication()
        if node.is_owner:
            self.store.put_meta("owner_node", str(node.node_index))
        self.apply(ev.NodeJoined(node.node_index, node.is_owner, node.local_world_size))
        return peer

    def _note_authentication(self) -> None:
        facts, is_authenticated = self.manifest.current.telemetry, self.roster.is_authenticated
        if facts.authenticated != is_authenticated:
            self.manifest.update(telemetry=msgspec.structs.replace(facts, authenticated=is_authenticated))

    def _refuse_if_over(self) -> None:
        if self.core.phase == "sealed":
            raise NotAdmitted(messages.RUN_ENDED, f"run {self.config.run_name} is over")

    def _take_over(self, slot: RankSlot | NodeSlot, connection: Connection) -> None:
        """The same process has connected again before its old connection was seen to be dead."""
        old, slot.connection = slot.connection, connection
        if old is not None:
            old.abort()

    # --- what peers tell ------------------------------------------------------------------------------------------

    def apply(self, *events: ev.Event) -> None:
        """Tell the core what happened and do what it says."""
        now_s = self.clock.now_s()
        for event in events:
            self._execute(self.core.handle(event, now_s))
        self._arm()

    def keep(self, slot: RankSlot) -> None:
        """What is known of this incarnation has changed: write it with the next transaction."""
        self.store.put_incarnation(slot.row())

    def tell_finished(self, slot: RankSlot) -> None:
        """The core learns of a marker; again once all the rank's records are here, which saves a settle window."""
        has_error = slot.error is not None
        self.apply(ev.RankFinished(slot.incarnation, slot.exit_code, has_error, slot.is_complete))

    def start_training(self, started_ns: int) -> None:
        """Told by the owner's launcher; under direct launch it is the first rank's arrival."""
        if self.training_started_ns is None:
            self.training_started_ns = started_ns
            self.store.put_meta(TRAINING_STARTED_NS, str(started_ns))
            self.manifest.update(lifecycle=self.manifest.lifecycle_with(training_started_at=rfc3339(started_ns)))

    def _hear(self, slots: list[RankSlot]) -> None:
        """Records of these are committed. A sign of life they are only where the connection that brought them lives."""
        wall_ns = self.clock.wall_ns()
        events: list[ev.Event] = []
        for slot in slots:
            if slot.connection is not None:
                slot.hear(wall_ns)
                events.append(ev.RankSent(slot.incarnation, slot.last_step))
            if slot.is_finished and slot.is_complete:
                events.append(ev.RankFinished(slot.incarnation, slot.exit_code, slot.error is not None))
        if self.store.is_idle:
            events.append(ev.DataDrained())
        if self.num_frames_rejected != self._rejected_kept:
            self._rejected_kept = self.num_frames_rejected
            self.store.put_meta(FRAMES_REJECTED, str(self._rejected_kept))
        self.apply(*events)

    # --- what the core says ---------------------------------------------------------------------------------------

    def _execute(self, commands: list[ev.Command]) -> None:
        for command in commands:
            match command:
                case ev.EndTraining():
                    self._sealing.end_training(command)
                case ev.MarkInterrupted():
                    self._sealing.mark_interrupted(command)
                case ev.SealRun():
                    self.on_seal()
                    self.start_task(self._sealing.seal(command))
                case ev.WarnOnce():
                    self.warn(command.text)

    def _arm(self) -> None:
        deadline_s = self.core.next_deadline()
        if deadline_s == self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = deadline_s
        self._timer = None if deadline_s is None else self.clock.call_at(deadline_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = self._armed_for = None
        self._execute(self.core.advance(self.clock.now_s()))
        self._arm()

    def conclude(self, notice: RunFinalized) -> None:
        """Everything is written: tell the launchers."""
        for node in self.roster.nodes.values():
            if node.connection is not None:
                node.connection.send(notice)
        if not self.finalized.done():
            self.finalized.set_result(None)

    def tell_owner(self, text: str) -> None:
        """Let the owner's launcher say it to its user, while training goes on."""
        for node in self.roster.nodes.values():
            if self.core.phase == "collecting" and node.is_owner and node.connection is not None:
                node.connection.send(messages.Notice(text))

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- diagnostics ----------------------------------------------------------------------------------------------

    def warn(self, text: str) -> None:
        """A sentence for the finalization warning and the daemon's own log; bounded."""
        if text not in self._warnings and len(self._warnings) < _MAX_WARNINGS:
            self._warnings.append(text)
            _log.warning("run %s: %s", self.config.run_name, text)

    def say(self, text: str) -> None:
        _log.info("run %s: %s", self.config.run_name, text)

    def all_warnings(self) -> tuple[str, ...]:
        storage = [self.store.failure] if self.store.failure is not None else []
        return (*self._warnings, *storage, *self.store.faults, *self._loop_faults.sentences, *self.files.failures)

    @property
    def num_frames_rejected(self) -> int:
        """By the whole daemon, and by those before it, since this run began: who a stranger is cannot be told."""
        return self._rejections.num_frames - self._rejected_before

    def rejected_by_peer(self) -> dict[str, dict[str, int]]:
        return self._rejections.by_peer()


def _core_settings(config: RunConfig, *, is_resumed: bool) -> CoreSettings:
    return CoreSettings(
        nnodes=config.nnodes,
        nproc_per_node=config.nproc_per_node,
        is_direct=config.is_direct,
        is_resumed=is_resumed,
        finalize_timeout_s=config.finalize_timeout_s,
        settle_s=config.settle_s,
    )
