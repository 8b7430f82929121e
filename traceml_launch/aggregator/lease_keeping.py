"""Keeps a run from looking abandoned while training goes on without a daemon."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import LEASE_S
from traceml_launch.aggregator.manifest_writer import ManifestWriter
from traceml_launch.folder.run_folder import RunFolder
from traceml_launch.node import Node

RENEW_S: Final = LEASE_S / 3


async def keep_lease(node: Node) -> None:
    """Where no daemon runs, or none any more, the owner's launcher holds the run; until cancelled."""
    folder = node.assignment.folder
    if folder is None:
        return
    started_ns = time.time_ns()
    await node.telemetry.ended.wait()
    writer, holder = ManifestWriter(run_dir=folder.run_dir), node.me.lease_holder()
    try:
        writer.take_over(holder, training_started_ns=started_ns)
        while True:
            await asyncio.sleep(RENEW_S)
            writer.renew(holder)
    except (OSError, StoreError) as error:
        node.console.problem(f"the manifest cannot be written: {error}")


def hold_between(node: Node, folder: RunFolder) -> None:
    """Between the death of one daemon and the start of the next, which may take a while, the run is ours."""
    try:
        ManifestWriter(run_dir=folder.run_dir).renew(node.me.lease_holder())
    except (OSError, StoreError) as error:
        node.console.problem(f"the manifest cannot be written: {error}")
