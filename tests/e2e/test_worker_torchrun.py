"""The worker under a real torchrun with a stub for a launcher: pipes and rings are looked at directly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.stub_launcher import GrantedRank, StubLauncher
from tests.harness.torchrun import FinishedCommand, start_torchrun
from traceml_client.protocol import ring
from traceml_client.protocol.columns import RECORD_WORDS, STEP_STREAM
from traceml_client.protocol.environ import HANDOVER

SCRIPT = str(Path(__file__).parent / "scripts" / "two_rank_job.py")
OPTIONS = ["--standalone", "--nproc-per-node=2"]

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(180)]


@contextlib.contextmanager
def measured(tmp_path: Path, *arguments: str) -> Iterator[tuple[FinishedCommand, dict[int, GrantedRank]]]:
    """A finished job, and its ranks with everything that they have printed."""
    command = [*OPTIONS, "-m", "traceml_client.worker", SCRIPT, *arguments]
    with StubLauncher(tmp_path) as launcher:
        with start_torchrun(command, cwd=tmp_path, environ={HANDOVER: str(launcher.path)}, name="measured") as torchrun:
            done = torchrun.finish(within_s=120)
        launcher.wait_for_streams()
        yield done, {rank.request.rank: rank for rank in launcher.ranks}


def steps(rank: GrantedRank) -> list[list[int]]:
    """Each step's words after its flags and its end."""
    _, data = rank.read_ring().read(STEP_STREAM, 0, 1000)
    words = memoryview(data).cast("q").tolist()
    return [words[start + 2 : start + RECORD_WORDS] for start in range(0, len(words), RECORD_WORDS)]


def test_streams_are_those_of_plain_torchrun_and_every_step_is_measured(tmp_path: Path) -> None:
    redirects = ["--redirects", "3", "--log-dir", str(tmp_path / "plain")]
    with start_torchrun([*OPTIONS, *redirects, SCRIPT, "--workers=1"], cwd=tmp_path, name="plain") as torchrun:
        assert torchrun.finish(within_s=120).exit_code == 0
    plain = {(path.parent.name, path.stem): path.read_bytes() for path in (tmp_path / "plain").rglob("std*.log")}
    with measured(tmp_path, "--workers=1") as (done, ranks):
        assert done.exit_code == 0
        assert done.stdout == b"", "torchrun's own standard output has nothing of the ranks"
        for number, rank in ranks.items():
            assert bytes(rank.stdout.data) == plain[str(number), "stdout"]
            assert bytes(rank.stderr.data) == plain[str(number), "stderr"]
            assert len(steps(rank)) == 8
            input_wait, _, forward, backward, optimizer, whole = steps(rank)[4]
            assert min(input_wait, forward, backward, optimizer) > 0
            assert input_wait + forward + backward + optimizer <= whole
            assert (rank.read_ring().exit_code(), rank.read_ring().is_marker_sent()) == (0, True)


def test_exit_code_of_a_rank_is_known_though_torchrun_says_1(tmp_path: Path) -> None:
    with measured(tmp_path, "--end", "exit_3") as (done, ranks):
        assert done.exit_code == 1
        assert ranks[1].read_ring().exit_code() == 3
        error = ranks[1].read_ring().error(ring.MAIN_ERROR)
        assert error is not None
        assert (error.type, error.message) == ("SystemExit", "3")
        assert len(steps(ranks[1])) == 5


def test_killed_rank_leaves_its_last_step_and_its_last_words(tmp_path: Path) -> None:
    with measured(tmp_path, "--end", "killed") as (done, ranks):
        assert done.exit_code == 1
        assert bytes(ranks[1].stdout.data).endswith(b"last words")
        assert len(steps(ranks[1])) == 5
        assert not ranks[1].read_ring().is_marker_sent()
        # The peer lost it in a backward or at the end of one, raised, and torchrun's table says so without @record.
        error = ranks[0].read_ring().error(ring.MAIN_ERROR)
        if error is not None:
            assert error.step >= 6
            assert "traceml_client" not in error.traceback
