"""What the daemon cannot see by itself is handed in: records of dead ranks, and files where none are shared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from traceml_client.protocol import launch, messages
from traceml_launch.logfile import read_tail
from traceml_launch.node import Node, is_marker_stored
from traceml_launch.placement import Place

SALVAGE_S: Final = 10.0
"""65,536 records of each of eight ranks take about a second; past this the recorders are kept as files."""
TAIL_BYTES: Final = 64 * 1024
TAILS_A_MESSAGE: Final = 8
"""512 KiB, half of what a frame may hold."""


async def hand_in_records(node: Node) -> None:
    """Give the daemon what it lacks of every dead rank; keep the recorders of those that it did not take."""
    link = node.telemetry.link
    lacking = [worker for worker in node.workers if not node.salvage.is_complete(worker)]
    if lacking and link is not None and node.telemetry.is_alive:
        handing_in = asyncio.gather(*(node.salvage.hand_in(worker, link) for worker in lacking))
        gone = asyncio.ensure_future(node.telemetry.ended.wait())
        awaited: set[asyncio.Future[Any]] = {handing_in, gone}
        await asyncio.wait(awaited, timeout=SALVAGE_S, return_when=asyncio.FIRST_COMPLETED)
        for each in awaited:
            each.cancel()
        await asyncio.gather(handing_in, gone, return_exceptions=True)
    keep_unstored_recorders(node)


def keep_unstored_recorders(node: Node) -> None:
    """Recorders of all ranks whose records or marker the daemon is not known to have stored."""
    node.keep_recorders(
        [each for each in node.workers if not (node.salvage.is_complete(each) and is_marker_stored(each))]
    )


async def send_files(node: Node, place: Place) -> None:
    """The ends of the ranks' standard error, where the daemon does not see this node's folder."""
    if place.is_shared or node.telemetry.link is None:
        return
    tails = list(_tails(node, place))
    for start in range(0, len(tails), TAILS_A_MESSAGE):
        node.telemetry.send(messages.NodeFiles(tails=tuple(tails[start : start + TAILS_A_MESSAGE])))


def _tails(node: Node, place: Place) -> Iterator[messages.Tail]:
    for worker in node.workers:
        relative = launch.layout_rank_dir(place.node_index, worker.request.rank, worker.attempt)
        data = read_tail(worker.rank_dir / "stderr.log", TAIL_BYTES)
        if data:
            yield messages.Tail(path=f"{relative}/stderr.log", data=data)
