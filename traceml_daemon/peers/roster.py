"""Who is in a run: nodes by their index, incarnations by their slot. Hands out what a peer does not know of itself.

A slot belongs to its first claimant: another process that asks for it is refused, the same process that comes back
(pid and start time are its identity) takes it again. Every number of a hello is checked here, before anything else
sees it: one that does not fit the database would cost everybody's transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceml_client.protocol import messages
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.messages import NUMBER_ME, NodeHello, RankHello, RankStarted
from traceml_client.protocol.node import RankEnd
from traceml_daemon.config import MAX_WORLD_SIZE, RunConfig
from traceml_daemon.core.events import Incarnation, RankPlace
from traceml_daemon.errors import NotAdmitted
from traceml_daemon.peers.slots import RankSlot

if TYPE_CHECKING:
    from traceml_daemon.peers.connection import Connection

_MAX_INTEGER: Final = 1 << 62
_MAX_TEXT: Final = 255
_MAX_ATTEMPT: Final = 1 << 20
_MAX_ATTEMPTS_EACH: Final = 64
"""Times the size of the job, and a few thousand more: so many incarnations a run takes, and nobody new after that."""
_UNKNOWN_SIZE: Final = 1024


@dataclass(slots=True, kw_only=True)
class NodeSlot:
    """One node's launcher."""

    node_index: int
    is_owner: bool
    local_world_size: int
    host: str
    pid: int
    start_ticks: int
    connection: Connection | None = None
    has_proven: bool = True
    """That it knows the run's token."""
    has_sent_files: bool = False
    """It shares no file system with us."""
    num_file_bytes: int = 0
    """Of the files that it sent to be kept."""

    def is_process(self, hello: NodeHello) -> bool:
        return (self.host, self.pid, self.start_ticks) == (hello.host, hello.pid, hello.start_ticks)


class Roster:
    """The slots of one run. Raises NotAdmitted where a claim cannot stand."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._max_slots = _MAX_ATTEMPTS_EACH * (_UNKNOWN_SIZE + config.nnodes * config.nproc_per_node)
        self.slots: dict[Incarnation, RankSlot] = {}
        self.nodes: dict[int, NodeSlot] = {}
        self._has_unproven_ranks = False
        self._by_id: dict[int, RankSlot] = {}
        self._attempts: dict[tuple[int, int], int] = {}
        """Youngest attempt per (node, local rank)."""
        self._direct_nodes: dict[tuple[str, int], int] = {}
        """Under direct launch: node index by (host, global rank of the node's first rank)."""

    def __iter__(self) -> Iterator[RankSlot]:
        return iter(self.slots.values())

    def by_id(self, slot_id: int) -> RankSlot:
        return self._by_id[slot_id]

    # --- nodes ----------------------------------------------------------------------------------------------------

    def claim_node(self, hello: NodeHello, *, has_proven: bool = True) -> NodeSlot:
        """The slot of this launcher; its old connection, if it has one, is still in it.

        A slot goes to its first claimant, but one that has proven nothing gives way to one that has.
        """
        _check_node(hello)
        if not has_proven and self.num_proven_nodes >= self._config.nnodes:
            raise NotAdmitted(messages.BAD_TOKEN, "all nodes of this run have proven that they know its token")
        index = self._index_of(hello)
        node = self.nodes.get(index)
        if node is not None and not node.has_proven and has_proven and not node.is_process(hello):
            if node.connection is not None:
                node.connection.abort()
            node = None
        if node is None:
            node = self.nodes[index] = NodeSlot(
                node_index=index,
                is_owner=hello.is_owner,
                local_world_size=hello.local_world_size,
                host=hello.host,
                pid=hello.pid,
                start_ticks=hello.start_ticks,
                has_proven=has_proven,
            )
        elif not node.is_process(hello):
            detail = f"node rank {index} of this run is held by a launcher on {node.host}"
            raise NotAdmitted(messages.SLOT_TAKEN, detail)
        node.local_world_size = hello.local_world_size or node.local_world_size
        node.has_proven |= has_proven
        return node

    @property
    def num_proven_nodes(self) -> int:
        return sum(node.has_proven for node in self.nodes.values())

    @property
    def is_authenticated(self) -> bool:
        """Whether everybody who was let in, and whose slot was not taken back, has proven to know the token."""
        is_everybody_proven = not self._has_unproven_ranks and self.num_proven_nodes == len(self.nodes)
        return bool(self._config.token) and (not self._config.is_token_offered or is_everybody_proven)

    def _index_of(self, hello: NodeHello) -> int:
        if hello.node_rank != NUMBER_ME:
            return hello.node_rank
        for node in self.nodes.values():
            if node.is_process(hello):
                return node.node_index
        # Nodes that an earlier daemon numbered come back with their number; until then it is kept for them.
        taken = {*self.nodes, *(slot.incarnation.node_index for slot in self)}
        return next(index for index in range(len(taken) + 1) if index not in taken)

    # --- ranks ----------------------------------------------------------------------------------------------------

    def claim_rank(self, hello: RankHello, *, has_proven: bool = True) -> RankSlot:
        """The slot of this process; its old connection, if it has one, is still in it."""
        _check_rank(hello)
        self._check_belongs(hello)
        if not has_proven:
            node = self.nodes.get(hello.node_index)
            if node is None or node.has_proven:
                raise NotAdmitted(messages.BAD_TOKEN, "its launcher knows the run's token, and it does not")
            self._has_unproven_ranks = True
        incarnation = self._incarnation_of(hello)
        place = _place(hello, hello.host)
        slot = self.slots.get(incarnation)
        if slot is None:
            slot = self.add(incarnation, place, start_ticks=hello.start_ticks)
        elif not slot.is_process(pid=hello.pid, start_ticks=hello.start_ticks):
            raise NotAdmitted(messages.SLOT_TAKEN, f"rank {hello.rank} of this run is held by another process")
        slot.place = place
        slot.wall_minus_monotonic_ns = hello.wall_minus_monotonic_ns
        return slot

    def add(self, incarnation: Incarnation, place: RankPlace, *, start_ticks: int) -> RankSlot:
        """A slot for an incarnation that has none."""
        if len(self.slots) >= self._max_slots:
            raise NotAdmitted(messages.TOO_MANY, "the run has too many attempts of its ranks")
        return self.put(RankSlot(id=len(self.slots) + 1, incarnation=incarnation, place=place, start_ticks=start_ticks))

    def put(self, slot: RankSlot) -> RankSlot:
        self.slots[slot.incarnation] = self._by_id[slot.id] = slot
        node_index, local_rank, attempt = slot.incarnation
        self._attempts[node_index, local_rank] = max(self._attempts.get((node_index, local_rank), 0), attempt)
        if self._config.is_direct:
            self._direct_nodes.setdefault((slot.place.host, slot.place.rank - local_rank), node_index)
        return slot

    def start_rank(self, node_index: int, started: RankStarted) -> RankSlot:
        """The slot of a worker that took its pipes and ring, and may have connected already."""
        incarnation = Incarnation(node_index, started.local_rank, started.attempt)
        numbers = (started.local_rank, started.attempt, started.rank, started.torch_restart_count, started.start_ticks)
        times = (abs(started.started_ns), abs(started.wall_minus_monotonic_ns))
        largest = max(*numbers, *times, started.pid, started.world_size)
        if min(numbers) < 0 or largest >= _MAX_INTEGER or started.world_size <= started.rank:
            raise RemoteProtocolError("a worker with impossible numbers was started")
        slot = self.slots.get(incarnation)
        if slot is None:
            place = _place(started, self.nodes[node_index].host)
            slot = self.add(incarnation, place, start_ticks=started.start_ticks)
        slot.started_ns = started.started_ns
        slot.wall_minus_monotonic_ns = slot.wall_minus_monotonic_ns or started.wall_minus_monotonic_ns
        return slot

    def from_report(self, node_index: int, end: RankEnd, host: str) -> RankSlot:
        """The slot that a node's report speaks of; a new one where its rank never got as far as to us."""
        incarnation = Incarnation(node_index, end.local_rank, end.attempt)
        slot = self.slots.get(incarnation)
        if slot is not None:
            return slot
        node = self.nodes.get(node_index)
        local = node.local_world_size if node is not None else self._config.nproc_per_node
        world_size = max(end.rank + 1, self._config.nnodes * self._config.nproc_per_node)
        local_world_size = max(local, end.local_rank + 1)
        place = RankPlace(end.rank, world_size, local_world_size, end.torch_restart_count, host, end.pid)
        return self.add(incarnation, place, start_ticks=0)

    def _check_belongs(self, hello: RankHello) -> None:
        """Whether a rank of this number can be in the run at all."""
        config = self._config
        if hello.node_index != NUMBER_ME:
            node = self.nodes.get(hello.node_index)
            if node is None:
                raise NotAdmitted(messages.UNKNOWN_NODE, f"the run has no node {hello.node_index} yet")
            if node.local_world_size and hello.local_rank >= node.local_world_size:
                detail = f"node {hello.node_index} has no local rank {hello.local_rank}"
                raise NotAdmitted(messages.UNKNOWN_RANK, detail)
            return
        if not config.is_direct:
            raise NotAdmitted(messages.UNKNOWN_RANK, "the ranks of this run are started by its launchers")
        expected = config.nnodes * config.nproc_per_node
        if expected and hello.world_size != expected:
            detail = f"the run has {expected} ranks, not {hello.world_size}: see --nproc-per-node"
            raise NotAdmitted(messages.UNKNOWN_RANK, detail)

    def _incarnation_of(self, hello: RankHello) -> Incarnation:
        if hello.node_index != NUMBER_ME and hello.attempt != NUMBER_ME:
            return Incarnation(hello.node_index, hello.local_rank, hello.attempt)
        node_index = self._direct_index(hello) if hello.node_index == NUMBER_ME else hello.node_index
        youngest = self._attempts.get((node_index, hello.local_rank))
        if youngest is None:
            return Incarnation(node_index, hello.local_rank, 0)
        slot = self.slots[Incarnation(node_index, hello.local_rank, youngest)]
        if slot.is_process(pid=hello.pid, start_ticks=hello.start_ticks):
            return slot.incarnation
        if slot.connection is not None:
            raise NotAdmitted(messages.SLOT_TAKEN, f"rank {hello.rank} of this run is held by another process")
        return Incarnation(node_index, hello.local_rank, youngest + 1)

    def _direct_index(self, hello: RankHello) -> int:
        """A node index that stays with its host: torchrun's own node numbers change when a job restarts."""
        first_rank = hello.rank - hello.local_rank
        key = (hello.host, first_rank)
        known = self._direct_nodes.get(key)
        if known is not None:
            return known
        for slot in self:
            if slot.connection is not None and slot.place.rank == hello.rank:
                raise NotAdmitted(messages.SLOT_TAKEN, f"rank {hello.rank} of this run is held by {slot.place.host}")
        wanted = max(0, first_rank) // hello.local_world_size
        taken = set(self._direct_nodes.values())
        index = wanted if wanted not in taken else next(i for i in range(len(taken) + 1) if i not in taken)
        self._direct_nodes[key] = index
        return index


def _place(of: RankHello | RankStarted, host: str) -> RankPlace:
    return RankPlace(of.rank, of.world_size, of.local_world_size, of.torch_restart_count, host, of.pid)


def _check_rank(hello: RankHello) -> None:
    is_sound = (
        0 <= hello.rank < hello.world_size <= MAX_WORLD_SIZE
        and 0 <= hello.local_rank < hello.local_world_size <= hello.world_size
        and NUMBER_ME <= hello.node_index < MAX_WORLD_SIZE
        and NUMBER_ME <= hello.attempt < _MAX_ATTEMPT
        and 0 <= hello.torch_restart_count < _MAX_ATTEMPT
        and 0 < hello.pid < _MAX_INTEGER
        and 0 <= hello.start_ticks < _MAX_INTEGER
        and abs(hello.wall_minus_monotonic_ns) < _MAX_INTEGER
        and len(hello.host) <= _MAX_TEXT
    )
    if not is_sound:
        raise NotAdmitted(messages.UNKNOWN_RANK, f"no job has a rank {hello.rank} of {hello.world_size}")


def _check_node(hello: NodeHello) -> None:
    is_sound = (
        NUMBER_ME <= hello.node_rank < MAX_WORLD_SIZE
        and 0 <= hello.local_world_size <= MAX_WORLD_SIZE
        and 0 < hello.pid < _MAX_INTEGER
        and 0 <= hello.start_ticks < _MAX_INTEGER
        and len(hello.host) <= _MAX_TEXT
    )
    if not is_sound:
        raise NotAdmitted(messages.UNKNOWN_RANK, f"no job has a node rank {hello.node_rank}")
