"""Promise 14: what the network cuts and joins comes out as the same messages, and a log as the same diagnosis.

Every cut of two frames, random cuts of frames and of made-up logs are properties in tests/property. Here a whole run
goes over a wire that passes on a few bytes at a time, and the example of each category is read in pieces of any size.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.harness.daemon import run_config, run_daemon
from tests.harness.proxy import proxy_to
from tests.harness.sim_rank import SimRank
from tests.promises.steps import count_steps
from traceml_daemon.log_files import catalog
from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.reader import LogReader
from traceml_daemon.triage.verdict import Verdict

TOKEN = "a secret"
BOOK = load_book()


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
async def test_a_run_over_a_wire_that_chops_is_the_same(run_dir: Path, piece_bytes: int) -> None:
    config = run_config(run_dir, nproc_per_node=1, is_direct=True)
    async with run_daemon(config) as daemon, proxy_to(daemon.port) as (proxy, port):
        proxy.piece_bytes = piece_bytes
        rank = SimRank(port=port, token=TOKEN)
        await rank.join()
        await rank.send_steps(30 * piece_bytes, per_frame=11)
        await rank.finish()
        await rank.close()
        manifest = await daemon.finalized()
    assert manifest.telemetry_status == "complete"
    assert count_steps(run_dir / "telemetry.sqlite") == 30 * piece_bytes
    assert daemon.rejections.by_peer() == {}


@pytest.mark.parametrize("category", catalog.categories())
def test_a_log_in_pieces_has_the_diagnosis_of_the_whole(category: str) -> None:
    log = f"{catalog.load_entry(category).example}\n".encode()
    whole = read([log])
    assert read(log.splitlines(keepends=True)) == whole
    for size in (1, 2, 3, 7, 64):
        assert read(log[start : start + size] for start in range(0, len(log), size)) == whole


def read(chunks: Iterable[bytes]) -> Verdict:
    seen = Observations()
    reader = LogReader(0, BOOK, seen)
    for chunk in chunks:
        reader.feed(chunk)
    reader.finish()
    return judge(seen)
