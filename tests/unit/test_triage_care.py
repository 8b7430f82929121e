"""Where the triage must be careful: what stands beside a cause and is none, and who was only a victim."""

from __future__ import annotations

import pytest

from tests.unit.test_triage_kinds import failed, read
from tests.unit.test_triage_rules import HEADER


def table(*ends: tuple[int, int, int]) -> str:
    """torchrun's summary of (exit code, rank, pid) on one node, the root cause last."""
    entry = "  time      : 2026-01-01_10:00:00\n  rank      : {1} (local_rank: {1})\n  exitcode  : {0} (pid: {2})\n"
    entries = [f"[{n}]:\n{entry.format(*end)}" for n, end in enumerate(ends)]
    return f"Failures:\n{''.join(entries[:-1])}Root Cause (first observed failure):\n{entries[-1]}"


@pytest.mark.parametrize(
    "line",
    [
        "[E ProcessGroupNCCL.cpp:474] [Rank {n}] ",
        "[E101 10:00:00.5 ProcessGroupNCCL.cpp:632] [Rank {n}] ",
        "[E101 10:00:00.500000000 ProcessGroupNCCL.cpp:632] [Rank {n}] ",
    ],
)
def test_what_a_library_logs_behind_an_exception_is_no_part_of_its_message(line: str) -> None:
    dog = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=1000) ran for "
    )
    dogs = "".join(f"{line.format(n=n)}{dog}1001 milliseconds before timing out.\n" for n in (0, 1))
    end = failed(-6, 0, 40) + table((-6, 1, 41), (1, 2, 42), (-6, 0, 40))
    error = f'{HEADER}  File "a.py", line 3, in f\nKeyError: 3\n'
    for noise in ("", "Exception ignored in: <function f.__del__ at 0x7f00>\n"):
        verdict = read(error + noise + dogs + end)
        assert (verdict.category, verdict.rank) == ("python_exception", 2)
    assert read(dogs + end.replace("exitcode  : 1 ", "exitcode  : -6 ")).category == "collective_timeout"
