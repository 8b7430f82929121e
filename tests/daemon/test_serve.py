"""A daemon of its own: direct launches, several runs at once, launchers that attach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.daemon import run_serving_daemon
from tests.harness.sim_node import SimNode, rank_end
from tests.harness.sim_rank import SimRank
from tests.harness.until import until
from traceml_client.protocol import messages
from traceml_client.protocol.errors import ConfigError, Refused
from traceml_client.protocol.node import RankError
from traceml_daemon.config import ServeConfig

ERROR = RankError("main", "ValueError", "no", "Traceback ...", 1, 3, "forward")


def config(tmp_path: Path, **changes: object) -> ServeConfig:
    values: dict[str, object] = {"logs_dir": tmp_path / "logs", "settle_s": 0.1}
    return ServeConfig(**{**values, **changes})  # type: ignore[arg-type]


async def life(rank: SimRank, *, num_steps: int = 10, error: RankError | None = None) -> None:
    await rank.join()
    await rank.send_steps(num_steps)
    await rank.finish(exit_code=1 if error else 0, error=error)
    await rank.close()


async def test_several_runs_are_kept_apart(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path)) as daemon:
        ranks = {
            name: [SimRank(port=daemon.port, run=name, rank=rank, world_size=2) for rank in range(2)]
            for name in ("red", "blue")
        }
        for name in ranks:
            for rank in ranks[name]:
                await rank.join()
        assert daemon.names() == ["blue", "red"]
        for number, rank in enumerate(rank for name in ranks for rank in ranks[name]):
            await rank.send_steps(10 * (number + 1))
            await rank.finish()
            await rank.close()
        red, blue = await daemon.finalized("red"), await daemon.finalized("blue")

    assert (red.telemetry.records.stored, blue.telemetry.records.stored) == (30, 70)
    assert (red.telemetry_status, blue.telemetry_status) == ("complete", "complete")
    assert red.run_id != blue.run_id


async def test_eight_ranks_that_come_at_once_open_one_run(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path)) as daemon:
        ranks = [SimRank(port=daemon.port, rank=rank, world_size=8) for rank in range(8)]
        welcomes = [await rank.join() for rank in ranks]
        assert len({welcome.run_id for welcome in welcomes}) == 1
        (name,) = daemon.names()
        for rank in ranks:
            await rank.finish()
            await rank.close()
        manifest = await daemon.finalized(name)

    assert manifest.telemetry.ranks_finished == tuple(range(8))


async def test_ranks_without_a_name_get_a_new_run_after_each_end(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path, run_name="first")) as daemon:
        await life(SimRank(port=daemon.port))
        await daemon.finalized("first")
        rank = SimRank(port=daemon.port)
        welcome = await rank.join()
        assert welcome.run_name != "first"
        await rank.finish()
        await rank.close()
        await daemon.finalized(welcome.run_name)

    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == sorted(["first", welcome.run_name])


async def test_the_name_of_a_finished_run_is_refused(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path)) as daemon:
        await life(SimRank(port=daemon.port, run="mine"))
        await daemon.finalized("mine")
        again = SimRank(port=daemon.port, run="mine")
        with pytest.raises(Refused, match=messages.RUN_ENDED):
            await again.join()

    async with run_serving_daemon(config(tmp_path)) as daemon:
        node = SimNode(port=daemon.port, run="mine")
        with pytest.raises(Refused, match="is a run that is completed already"):
            await node.join()


@pytest.mark.parametrize("name", ["../outside", "a/b", ".hidden", "x" * 200, "a\0b"])
async def test_a_name_that_is_no_folders_name_is_refused(tmp_path: Path, name: str) -> None:
    async with run_serving_daemon(config(tmp_path)) as daemon:
        with pytest.raises(Refused):
            await SimRank(port=daemon.port, run=name).join()

    assert list((tmp_path / "logs").iterdir()) == []


async def test_a_rank_that_restarts_is_the_next_attempt(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path, run_name="mine", nproc_per_node=2)) as daemon:
        steady = SimRank(port=daemon.port, rank=0, world_size=2)
        await steady.join()
        first = SimRank(port=daemon.port, rank=1, world_size=2)
        await first.join()
        await first.send_steps(7)
        await first.wait_acked()
        first.reset()
        (session,) = daemon.runs.sessions.values()
        await until(lambda: sum(slot.connection is not None for slot in session.roster) == 1, "the loss is noticed")
        second = SimRank(port=daemon.port, rank=1, world_size=2, torch_restart_count=1)
        welcome = await second.join()
        assert (welcome.node_index, welcome.attempt, welcome.next_seq) == (0, 1, (0, 0))
        for rank in (steady, second):
            await rank.send_steps(5)
            await rank.finish()
            await rank.close()
        manifest = await daemon.finalized("mine")

    assert (manifest.status, manifest.telemetry_status) == ("completed", "complete")
    assert manifest.training.attempts == 2
    assert manifest.telemetry.records.stored == 17


async def test_two_nodes_of_a_direct_launch_keep_their_indices(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path, run_name="mine", nnodes=2, nproc_per_node=1)) as daemon:
        hosts = {0: "alpha", 1: "beta"}
        ranks = [
            SimRank(port=daemon.port, rank=rank, world_size=2, local_rank=0, local_world_size=1, host=hosts[rank])
            for rank in (1, 0)
        ]
        indices = [(await rank.join()).node_index for rank in ranks]
        for rank in ranks:
            await rank.finish()
            await rank.close()
        await daemon.finalized("mine")

    assert indices == [1, 0]


async def test_a_world_of_another_size_is_refused(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path, run_name="mine", nproc_per_node=2)) as daemon:
        with pytest.raises(Refused, match="the run has 2 ranks, not 4"):
            await SimRank(port=daemon.port, world_size=4).join()


@pytest.mark.parametrize(("error", "status"), [(None, "completed"), (ERROR, "failed")])
async def test_a_direct_launch_is_failed_if_a_rank_recorded_an_error(
    tmp_path: Path, error: RankError | None, status: str
) -> None:
    async with run_serving_daemon(config(tmp_path, run_name="mine")) as daemon:
        await life(SimRank(port=daemon.port), error=error)
        manifest = await daemon.finalized("mine")

    assert (manifest.status, manifest.training.exit_code) == (status, None)
    assert ("failure_report_json" in manifest.artifacts) == (error is not None)


async def test_stopping_finalizes_what_is_there_as_interrupted(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path)) as daemon:
        rank = SimRank(port=daemon.port, run="mine")
        await rank.join()
        await rank.send_steps(10)
        await daemon.runs.stop_and_wait()
        manifest = daemon.manifest("mine")
        with pytest.raises(Refused, match="about to stop"):
            await SimRank(port=daemon.port, run="another").join()
        await rank.close()

    assert (manifest.status, manifest.telemetry_reason) == ("interrupted", "finalization_warning")
    assert manifest.telemetry.records.stored == 10


async def test_launchers_attach_and_the_run_folder_is_the_daemons(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path, token="secret")) as daemon:
        node = SimNode(port=daemon.port, run="mine", token="secret", local_world_size=1)
        welcome = await node.join()
        assert welcome.run_dir == str(tmp_path / "logs" / "mine")
        rank = await node.start_rank(SimRank(port=daemon.port))
        await life(rank)
        await node.say(messages.NodeFiles((messages.Tail("nodes/node_0/training.stderr.log", b"text"),)))
        await node.end(node.report(rank_end(rank)))
        finalized = await node.wait_finalized()
        manifest = await daemon.finalized("mine")
        await node.close()

    assert finalized.telemetry_status == "complete"
    assert (manifest.status, manifest.training.exit_code) == ("completed", 0)
    assert {"node_0_report", "node_0_stderr"} <= set(manifest.artifacts)


async def test_without_the_token_no_run_is_opened(tmp_path: Path) -> None:
    async with run_serving_daemon(config(tmp_path, token="secret")) as daemon:
        for peer in (SimRank(port=daemon.port, run="mine"), SimNode(port=daemon.port, run="mine")):
            with pytest.raises(Refused, match=messages.BAD_TOKEN):
                await peer.join()

    assert list((tmp_path / "logs").iterdir()) == []


async def test_a_run_name_that_is_taken_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "logs" / "mine").mkdir(parents=True)
    with pytest.raises(ConfigError, match="--run-name mine"):
        async with run_serving_daemon(config(tmp_path, run_name="mine")):
            pass
