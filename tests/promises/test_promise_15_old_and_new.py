"""Promise 15: a peer with fields that we do not know is understood; one of another major version is refused by name.

Properties of every message are in tests/property/test_codec.py, the client's side in tests/client/test_sender.py.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.daemon.living_run import living_run
from tests.harness.daemon import run_config, run_daemon
from tests.harness.sim_rank import SimRank
from traceml_client.protocol import codec, messages
from traceml_client.protocol.errors import Refused
from traceml_client.protocol.frames import frame

TOKEN = "a secret"
NEW = ["a field of the future", 7, {"deep": [1]}]


class NewerRank(SimRank):
    """Every message of it has three fields more."""

    async def say(self, message: messages.Message) -> None:
        fields = msgspec.msgpack.decode(codec.encode(message)[4:])
        await self.connected.send_bytes(frame(msgspec.msgpack.encode([*fields, *NEW])))


async def test_a_newer_rank_is_understood(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = NewerRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_steps(100)
        await rank.ping()
        await rank.finish()
        await rank.close()
        manifest = await daemon.finalized()
    assert (manifest.telemetry_status, manifest.telemetry.records.stored) == ("complete", 100)


async def test_an_older_rank_is_understood(run_dir: Path) -> None:
    """Its marker ends before the notes, its ping before the clock's offset."""
    async with run_daemon(run_config(run_dir, nproc_per_node=1, is_direct=True)) as daemon:
        rank = SimRank(port=daemon.port, token=TOKEN)
        await rank.join()
        await rank.send_bytes(frame(msgspec.msgpack.encode([18, 5])))
        assert isinstance(await rank.connected.receive(), messages.Pong)
        await rank.send_bytes(frame(msgspec.msgpack.encode([8, 1, [0, 0], 0, None])))
        assert isinstance(await rank.connected.receive(), messages.Ack)
        await rank.close()
        assert (await daemon.finalized()).telemetry_status == "complete"


@pytest.mark.parametrize("version", [0, 2])
async def test_another_major_version_is_refused_with_both_named(run_dir: Path, version: int) -> None:
    async with living_run(run_dir) as (daemon, rank):
        stranger = SimRank(port=daemon.port, token=TOKEN, run=rank.run, node_index=0, attempt=1, version=version)
        with pytest.raises(Refused) as refused:
            await stranger.join()
        ours = messages.PROTOCOL_MAJOR
        assert refused.value.reason == messages.WRONG_VERSION
        assert refused.value.detail == f"the aggregator speaks version {ours}, the peer {version}"
