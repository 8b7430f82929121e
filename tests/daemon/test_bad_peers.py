"""Strangers, liars and broken peers: refused, counted, cut off; the run goes on as if they had never come."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.daemon.living_run import TOKEN, living_run, refusal
from tests.harness.daemon import run_config, run_daemon
from tests.harness.sim_node import SimNode
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from tests.harness.wire import Wire, step_columns
from traceml_client.protocol import codec, messages
from traceml_client.protocol.columns import NARROW, STEP_STREAM
from traceml_client.protocol.frames import frame
from traceml_client.protocol.messages import Records

GARBAGE = {
    "random bytes": os.urandom(64 * 1024),
    "text": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "a length of 4 GiB": b"\xff\xff\xff\xff" + bytes(100),
    "an empty frame": frame(b""),
    "msgpack that is no message": frame(b"\x93\x01\x02\x03"),
    "a deep nest": frame(b"\x91" * 4000),
    "an unknown message": frame(b"\x92\xcc\xc8\x01"),
    "a message out of turn": codec.encode(Records(STEP_STREAM, 0, 10, *step_columns(0, 10))),
    "a hello with a wrong type": frame(b"\x95\x02\xa1x\xa0\xc4\x00\x00"),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_stranger_that_sends_garbage_is_cut_off_and_counted(run_dir: Path, garbage: bytes) -> None:
    async with living_run(run_dir) as (daemon, _):
        wire = await Wire.connect(daemon.port)
        with contextlib.suppress(ConnectionError):
            await wire.send_bytes(garbage)
        assert await wire.is_closed_by_daemon()
        await wire.close()
        assert daemon.rejections.num_frames == 1
        assert set(daemon.rejections.by_peer()) == {"127.0.0.1"}


@pytest.mark.parametrize("is_member", [False, True])
async def test_half_a_frame_and_an_end_is_counted(run_dir: Path, is_member: bool) -> None:
    async with living_run(run_dir) as (daemon, rank):
        if is_member:
            await rank.send_half_frame()
            await rank.close()
            await until(lambda: daemon.rejections.num_frames == 1, "the half frame is counted")
            await rank.rejoin()
        else:
            wire = await Wire.connect(daemon.port)
            await wire.send_bytes(b"\x10\x00\x00\x00half")
            await wire.close()
        await until(lambda: daemon.rejections.num_frames == 1, "the half frame is counted")
        assert daemon.rejections.by_peer() == {"127.0.0.1": {"half_frame": 1}}


LIES = {
    "an unknown format": Records(STEP_STREAM, 10, 10, "qB9q", bytes(570)),
    "fewer bytes than records": Records(STEP_STREAM, 10, 11, *step_columns(10, 10)),
    "no records at all": Records(STEP_STREAM, 10, 0, NARROW, b""),
    "an unknown stream": Records(7, 10, 10, *step_columns(10, 10)),
    "a negative stream": Records(-1, 10, 10, *step_columns(10, 10)),
    "a negative sequence": Records(STEP_STREAM, -5, 10, *step_columns(0, 10)),
    "a sequence of a billion years": Records(STEP_STREAM, 1 << 60, 10, *step_columns(10, 10)),
    "a hello again": messages.RankHello(1, "", b"", 0, 0, 0, 0, 1, 1, 0, "h", 1, 1, 0),
    "a launcher's word": messages.RankExited(0, 0, 1, 0),
    "a marker of impossible numbers": messages.RankFinished(1, (-1, 0), 0, None),
    "a marker beyond 64 bits": messages.RankFinished(1, (2**64 - 1, 0), 0, None),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_member_that_breaks_the_rules_loses_its_connection_and_nothing_else(
    run_dir: Path, lie: messages.Message
) -> None:
    async with living_run(run_dir) as (daemon, rank):
        await rank.wait_acked()
        await rank.say(lie)
        assert await rank.connected.is_closed_by_daemon()
        await rank.close()
        assert daemon.rejections.by_peer() == {"127.0.0.1": {"bad_frame": 1}}
        assert (await rank.rejoin()).next_seq == (10, 0)


def claimant(of: SimRank, **changes: object) -> SimRank:
    """Another process that says of itself what `of` says, but for the changes."""
    values: dict[str, object] = {
        "port": of.port, "run": of.run, "token": of.token, "node_index": of.node_index,
        "attempt": of.attempt, "local_rank": of.local_rank, "local_world_size": 1,
    }  # fmt: skip
    return SimRank(**{**values, **changes})  # type: ignore[arg-type]


REFUSED = {
    "no token": ({"token": ""}, messages.BAD_TOKEN),
    "a wrong token": ({"token": "another secret"}, messages.BAD_TOKEN),
    "another run": ({"run": "another-run"}, messages.WRONG_RUN),
    "a version of the future": ({"version": 2}, messages.WRONG_VERSION),
    "a second claimant of a taken slot": ({}, messages.SLOT_TAKEN),
    "an unknown node": ({"node_index": 3}, messages.UNKNOWN_NODE),
    "an unknown local rank": ({"local_rank": 1, "local_world_size": 2, "world_size": 2}, messages.UNKNOWN_RANK),
    "a rank beyond the world": ({"rank": 1}, messages.UNKNOWN_RANK),
    "a negative rank": ({"rank": -1}, messages.UNKNOWN_RANK),
    "a world of nobody": ({"world_size": 0}, messages.UNKNOWN_RANK),
    "a pid of 64 bits": ({"pid": 2**64 - 1}, messages.UNKNOWN_RANK),
    "an endless host name": ({"host": "x" * 1000}, messages.UNKNOWN_RANK),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED.keys())
async def test_who_does_not_belong_is_refused_with_the_reason(
    run_dir: Path, changes: dict[str, object], reason: str
) -> None:
    async with living_run(run_dir) as (daemon, rank):
        assert await refusal(claimant(rank, **changes)) == reason
        assert daemon.rejections.by_peer() == {"127.0.0.1": {reason: 1}}
        assert len(daemon.session.roster.slots) == 1


async def test_a_proof_is_of_no_use_on_another_connection(run_dir: Path) -> None:
    async with living_run(run_dir) as (daemon, rank):
        first = await Wire.connect(daemon.port)
        recorded = rank.hello(first.nonce)
        second = await Wire.connect(daemon.port)
        await second.send(recorded)
        answer = await second.receive()
        assert isinstance(answer, messages.Refused)
        assert answer.reason == messages.BAD_TOKEN
        await first.close()
        await second.close()


async def test_the_same_process_takes_its_slot_back_from_a_dead_connection(run_dir: Path) -> None:
    """The network was cut: the daemon has not seen its old connection end."""
    async with living_run(run_dir) as (daemon, rank):
        old = rank.connected
        await rank.wait_acked()
        assert (await rank.rejoin()).next_seq == (10, 0)
        assert await old.is_closed_by_daemon()
        await old.close()
        assert daemon.rejections.num_frames == 0


async def test_a_launcher_may_write_its_own_files_only(run_dir: Path) -> None:
    config = run_config(run_dir, nproc_per_node=1)
    outside = run_dir.parent / "outside"
    async with run_daemon(config) as daemon:
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
        await node.join()
        kept = messages.Tail("nodes/node_0/ranks/rank_0/attempt_0/stderr.log", b"last words")
        await node.say(messages.NodeFiles((kept,)))
        written = run_dir / kept.path
        await until(written.is_file, "the tail is kept")
        for path in ("nodes/node_0/../../../outside", "/etc/x", "nodes/node_1/x", "manifest.json", "nodes/node_0", ""):
            await node.say(messages.NodeFiles((messages.Tail(path, b"x"),)))
            assert await node.connected.is_closed_by_daemon(), path
            await node.close()
            await node.join()
        await node.close()
        assert daemon.rejections.by_peer() == {"127.0.0.1": {"bad_frame": 6}}

    assert written.read_bytes() == b"last words"
    assert not outside.exists()


async def test_a_link_in_the_run_folder_does_not_lead_a_file_out_of_it(run_dir: Path) -> None:
    async with run_daemon(run_config(run_dir, nproc_per_node=1)) as daemon:
        elsewhere = run_dir.parent / "elsewhere"
        elsewhere.mkdir()
        (run_dir / "nodes" / "node_0").symlink_to(elsewhere)
        node = SimNode(port=daemon.port, run="run-id-1", token=TOKEN)
        await node.join()
        await node.say(messages.NodeFiles((messages.Tail("nodes/node_0/stderr.log", b"x"),)))
        await until(lambda: bool(daemon.session.files.failures), "the write failed")
        await node.close()

    assert list(elsewhere.iterdir()) == []
