"""How training ended, who is missing, and why: read from what ranks and nodes are known to have done.

Nothing is decided here about time; the same knowledge always gives the same verdict, whatever order it came in.
"""

from __future__ import annotations

from traceml_daemon.core.events import NodeVerdict, RankMissing, TrainingVerdict
from traceml_daemon.core.ledger import Ledger
from traceml_daemon.core.nodes import Nodes
from traceml_daemon.core.ranks import RankRecord, Ranks


def judge_launched(nodes: Nodes, *, is_stopped: bool) -> TrainingVerdict:
    """Training under launchers: the owner's torchrun speaks for the exit code, every reported exit for the status."""
    verdicts = nodes.verdicts()
    owner = nodes.owner
    speaker = owner.node_index if owner is not None else verdicts[0].node_index
    own = next(verdict for verdict in verdicts if verdict.node_index == speaker)
    # A daemon that is told to stop knows nothing of training's end, unless the owner's launcher tells it in time.
    is_cut = is_stopped and (owner is None or owner.report is None)
    is_interrupted = is_cut or (owner is not None and owner.interrupted_by is not None)
    is_owner_lost = owner is not None and owner.report is None
    has_failed = is_owner_lost or any(_is_failure(verdict) for verdict in verdicts)
    return TrainingVerdict(
        status="interrupted" if is_interrupted else "failed" if has_failed else "completed",
        exit_code=own.exit_code,
        signal=own.signal,
        nodes=verdicts,
    )


def judge_direct(ranks: Ranks, missing: tuple[RankMissing, ...], *, is_stopped: bool) -> TrainingVerdict:
    """Training without a launcher: markers and errors are all there is, and nobody knows an exit code."""
    has_failed = bool(missing) or any(record.has_failed for record in ranks.last_attempts().values())
    return TrainingVerdict(
        status="interrupted" if is_stopped else "failed" if has_failed else "completed", exit_code=None, signal=None
    )


def _is_failure(verdict: NodeVerdict) -> bool:
    return verdict.signal is not None or verdict.exit_code not in (None, 0)


class MissingRanks:
    """Says of the ranks without a marker why they are missing, in words for the reports."""

    def __init__(self, ledger: Ledger, *, nproc_per_node: int) -> None:
        self._ranks = ledger.ranks
        self._nodes = ledger.nodes
        self._started_s = ledger.started_s
        self._nproc_per_node = nproc_per_node

    def split(self, world_size: int, *, cut_because: str | None) -> tuple[tuple[int, ...], tuple[RankMissing, ...]]:
        """Partition `range(world_size)` into finished and missing.

        `cut_because` is why the run was sealed although a rank was still at work.
        """
        attempts = self._ranks.last_attempts()
        finished, missing = [], []
        for rank in range(world_size):
            record = attempts.get(rank)
            if record is not None and record.state == "finished":
                finished.append(rank)
                continue
            incarnation = record.incarnation if record is not None else None
            why = self._why(record, cut_because) if record is not None else self._why_unseen(rank)
            missing.append(RankMissing(rank=rank, incarnation=incarnation, why=why))
        return tuple(finished), tuple(missing)

    def _why(self, record: RankRecord, cut_because: str | None) -> str:
        """The best witness first: its launcher's report, its launcher's fate, then the rank's own silence."""
        if record.ending is not None and record.ending.why:
            return record.ending.why
        node = self._nodes.get(record.incarnation.node_index)
        if record.is_gone:
            return "its process ended without a marker"
        if cut_because is not None and record.is_open and record.is_connected:
            return f"was still connected when {cut_because}"
        if node is not None and node.why_silent is not None:
            return node.why_silent
        if record.joined_s is None or record.last_heard_s is None:
            return "its worker was started, but never connected"
        joined, heard = record.joined_s - self._started_s, record.last_heard_s - self._started_s
        return f"joined {joined:.1f} s into the run, no sign after {heard:.1f} s"

    def _why_unseen(self, rank: int) -> str:
        """Where every node has the same number of ranks, the rank's number tells its node."""
        if self._nodes and self._nproc_per_node > 0:
            node_index = rank // self._nproc_per_node
            node = self._nodes.get(node_index)
            why = f"node {node_index}'s launcher never connected" if node is None else node.why_silent
            if why is not None:
                return f"never started: {why}"
        return "never started"
