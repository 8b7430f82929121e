"""Damaged streams, from strangers and from a member whose program has gone mad: the others' run stays what it is."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from tests.daemon.living_run import TOKEN
from tests.harness.attacker import junk_frames, node_words, rank_words
from tests.harness.daemon import run_config, run_daemon
from tests.harness.fuzz import fuzzed
from tests.harness.sim_rank import SimRank
from tests.harness.wire import Wire, step_columns
from tests.promises.steps import count_steps
from traceml_client.protocol import codec, messages
from traceml_client.protocol.columns import SAMPLE_STREAM, STEP_STREAM
from traceml_client.protocol.errors import Refused
from traceml_client.protocol.node import RankError

NUM_STREAMS = 30
ERROR = RankError(kind="main", type="E", message="m", traceback="t", raised_ns=1)


def frames_of(rank: SimRank, nonce: bytes) -> list[bytes]:
    """Everything that a rank ever sends, and what it never does."""
    said: list[messages.Message] = [
        *(messages.Records(STEP_STREAM, first, 10, *step_columns(first, 10)) for first in range(0, 100, 10)),
        messages.Records(SAMPLE_STREAM, 0, 5, *step_columns(0, 5)),
        messages.Ping(1, 2, 3),
        messages.RankFailed(ERROR),
        messages.RankFinished(1, (100, 5), 0, ERROR, ("a note",)),
        rank.hello(nonce),
    ]
    return [*map(codec.encode, said), rank_words(), node_words(), junk_frames(2)]


@pytest.mark.parametrize("seed", range(4))
async def test_damaged_streams_reach_nobody_else(run_dir: Path, seed: int) -> None:
    choose = random.Random(seed)
    config = run_config(run_dir, nproc_per_node=2, is_direct=True)
    async with run_daemon(config) as daemon:
        good, mad = (SimRank(port=daemon.port, token=TOKEN, rank=rank, world_size=2) for rank in range(2))
        await good.join()
        for number in range(NUM_STREAMS):
            wire = await join_or_come_as_stranger(choose, mad, daemon.port)
            with contextlib.suppress(ConnectionError):
                await wire.send_bytes(fuzzed(choose, frames_of(mad, wire.nonce)))
            await good.send_steps(10)
            await wire.hang_up()
            await good.wait_acked(10 * (number + 1))
        await good.finish()
        await good.close()
        manifest = await daemon.finalized()

    assert manifest.telemetry.ranks_finished[0] == 0
    summary = daemon.json("final_summary.json")
    (attempt,) = summary["ranks"][0]["attempts"]
    assert (attempt["steps"], attempt["records"]["dropped"]) == (10 * NUM_STREAMS, 0)
    assert daemon.rejections.num_frames > 0
    assert count_steps(run_dir / "telemetry.sqlite") >= 10 * NUM_STREAMS


async def join_or_come_as_stranger(choose: random.Random, mad: SimRank, port: int) -> Wire:
    if choose.random() < 0.5:
        with contextlib.suppress(Refused, ConnectionError):
            await mad.join()
            return mad.connected
    return await Wire.connect(port)
