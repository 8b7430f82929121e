"""Ranks that step at a steady pace: `python -m tests.harness.steady_load PORT RANKS STEPS_PER_S SECONDS`.

The run's token is in TRACEML_TOKEN. A rank sends what it has every 50 ms; a JSON line at the end says what was
acknowledged as stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop

from tests.harness.sim_rank import SimRank

TICK_S = 0.05


async def pace(rank: SimRank, steps_per_s: float, seconds: float) -> None:
    """Send what is due, tick by tick; a tick that comes late sends more."""
    started_s = time.monotonic()
    while (passed_s := time.monotonic() - started_s) < seconds:
        due = int(passed_s * steps_per_s) - rank.next_seq[0]
        if due > 0:
            await rank.send_steps(due, per_frame=250)
        await asyncio.sleep(TICK_S)
    await rank.finish()
    await rank.close()


async def main() -> None:
    port, num_ranks, steps_per_s, seconds = (int(word) for word in sys.argv[1:5])
    ranks = [
        SimRank(port=port, rank=rank, world_size=num_ranks + 1, token=os.environ["TRACEML_TOKEN"])
        for rank in range(num_ranks)
    ]
    for rank in ranks:
        await rank.join()
    await asyncio.gather(*(pace(rank, steps_per_s / num_ranks, seconds) for rank in ranks))
    print(json.dumps({"stored": sum(rank.acked[0] for rank in ranks)}), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
