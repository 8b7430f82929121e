"""Which replica of a model is the odd one, by what DDP's check prints on each rank."""

from __future__ import annotations

import msgspec
import pytest

from tests.harness.facts import Rank, error, run_facts
from traceml_daemon.report.failure import diagnose
from traceml_daemon.triage.odd_replica import odd_replica


def counts(rank: int, own: int, other: int, others: int) -> str:
    return (
        f"DDP expects same model across all ranks, but Rank {rank} has {own} params, "
        f"while rank {other} has inconsistent {others} params."
    )


def shapes(rank: int, sizes: str = "[64, 32]", *, other: int = 0) -> str:
    return (
        f"[{rank}]: params[0] in this process with sizes {sizes} appears not to match sizes of the same param "
        f"in process {other}."
    )


@pytest.mark.parametrize(
    ("messages", "world_size", "odd"),
    [
        ([counts(0, 4, 2, 6), counts(1, 4, 2, 6), counts(2, 6, 0, 4)], 3, 2),
        ([counts(0, 6, 1, 4), counts(1, 4, 0, 6), counts(2, 4, 0, 6)], 3, 0),
        ([counts(0, 4, 1, 6), counts(1, 6, 0, 4)], 2, None),
        ([counts(0, 4, 2, 6), counts(1, 4, 2, 6), counts(2, 6, 0, 4), counts(3, 6, 0, 4)], 4, None),
        ([shapes(2)], 3, 2),
        ([shapes(1), shapes(2)], 3, 0),
        ([shapes(1), shapes(3)], 5, None),
        ([shapes(1), shapes(2, "[9]"), shapes(3)], 4, None),
        ([shapes(1)], 2, None),
        (["loss is nan"], 3, None),
    ],
)
def test_the_odd_one_is_found_by_majority(messages: list[str], world_size: int, odd: int | None) -> None:
    assert odd_replica(messages, world_size) == odd


def test_the_odd_one_need_not_be_who_raised() -> None:
    lost = error("RuntimeError", "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer", at_ms=1010.0)
    ranks = [Rank(rank=0, error=lost, exit_code=1)]
    for rank in (1, 2):
        raised = msgspec.structs.replace(error("RuntimeError", shapes(rank), at_ms=1000.0 + rank), step=0)
        ranks.append(Rank(rank=rank, error=raised, exit_code=1))
    diagnosis = diagnose(run_facts(ranks))
    assert diagnosis is not None
    found = diagnosis.report
    assert (found.category, found.initiating_rank, found.confidence) == ("ddp_model_mismatch", 0, "likely")
    assert found.summary.startswith("rank 0 (node 0) has another model than the others; rank 1 (node 0) raised")
