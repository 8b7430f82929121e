"""What a run's finalization depends on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    nnodes: int = 1
    """The smallest number where the launch says MIN:MAX."""
    nproc_per_node: int = 0
    """0: learn it from the ranks."""
    is_direct: bool = False
    """No launcher is expected; the first one that connects makes it a launched run."""
    is_resumed: bool = False
    """An earlier daemon held this run: launchers that it knew may be on their way back."""
    finalize_timeout_s: float = 300.0
    """From the end of training to the written reports."""
    settle_s: float = 1.0
    reconnect_grace_s: float = 5.0
    node_loss_grace_s: float = 5.0
    other_nodes_grace_s: float = 10.0
    """How much longer than the owner's torchrun those of other nodes may take."""
    write_reserve_s: float = 10.0
    """The part of the timeout that is kept back for the database and the reports; at most half of it."""

    @property
    def reserve_s(self) -> float:
        return min(self.write_reserve_s, self.finalize_timeout_s / 2)

    @property
    def collect_s(self) -> float:
        """The part of the timeout in which telemetry is waited for."""
        return self.finalize_timeout_s - self.reserve_s
