"""Whose an unsigned error is: what stands above it, what watchdogs and supervisors say, and when nobody can tell."""

from __future__ import annotations

import pytest

from tests.unit.test_triage_care import table
from tests.unit.test_triage_kinds import OUT_OF_MEMORY, failed, read

ASSERTED = "CUDA error: device-side assert triggered"
KERNEL = "TensorCompare.cu:112: kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability < 0` failed.\n"
TRACE = 'Traceback (most recent call last):\n  File "t.py", line 3, in f\n'
NCCL = "RuntimeError: NCCL error: unhandled cuda error\nCUDA driver version is insufficient for CUDA runtime version\n"
REFUSED = TRACE + "OSError: You are trying to access a gated repo.\n"


def watchdog(rank: int, second: float, what: str) -> str:
    place = f"[E1021 11:42:{second:012.9f} ProcessGroupNCCL.cpp:2068]"
    return f"[rank{rank}]:{place} [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {what}\n"


def prefixed(prefix: str, text: str) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def asserted(rank: int, second: float) -> str:
    ended = f"Process group watchdog thread terminated with exception: {ASSERTED}"
    trace = prefixed(f"[rank{rank}]: ", f"{TRACE}torch.AcceleratorError: {ASSERTED}\n")
    return KERNEL + watchdog(rank, second, ended) + trace


@pytest.mark.parametrize(
    ("above", "rank"),
    [
        ("[rank 0] decoded 712104 tiles\n", 3),
        ("2026-01-01 10:00:01 | rank 0 | INFO | shard 0 loaded\n", 3),
        ("rank 2: training failed\n", 2),
        ("rank 2 caught an exception\n", 2),
    ],
)
def test_what_a_rank_had_done_does_not_sign_the_traceback_below(above: str, rank: int) -> None:
    assert read(above + OUT_OF_MEMORY + failed(1, rank, 911)).rank == rank
    assert read(above + OUT_OF_MEMORY).rank == (None if rank == 3 else 2)


def test_of_an_error_that_two_ranks_raised_alike_the_watchdogs_tell_the_first() -> None:
    both = asserted(1, 21.9), asserted(4, 19.3)
    assert read("".join(both)).rank == 4
    assert read(asserted(1, 21.9) + asserted(4, 21.8)).rank is None


def test_a_watchdog_signs_the_only_traceback_of_the_same_error() -> None:
    error = "CUDA error: uncorrectable ECC error encountered\n"
    trace = f"{TRACE}RuntimeError: {error}"
    line = f"[E ProcessGroupNCCL.cpp:916] [Rank 6] NCCL watchdog thread terminated with exception: {error}"
    assert (read(trace + line).category, read(trace + line).rank) == ("gpu_hardware", 6)
    assert read(trace + trace + line).rank is None


def test_a_signed_line_is_one_of_many_where_several_ranks_ended_alike() -> None:
    driver = "CUDA driver version is insufficient for CUDA runtime version"
    line = f"h:1745:1745 [0] cudawrap.cc:36 NCCL WARN Cuda failure '{driver}'\n"
    ended = failed(1, 0, 1745) + table((1, 0, 1745), (1, 1, 1746))
    verdict = read(line + TRACE + NCCL + ended)
    assert (verdict.category, verdict.rank) == ("gpu_driver_mismatch", None)
    assert read(line + TRACE + NCCL + failed(1, 0, 1745)).rank == 0


def test_ranks_that_abort_for_a_lost_peer_are_not_to_blame() -> None:
    lost = "Collective WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) raised the following async exception: "
    lost += "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5"
    both = watchdog(4, 10.4, lost) + watchdog(5, 10.5, lost)
    assert read(both + failed(-6, 4, 431)).category == "collateral_only"
    assert read(both + failed(-6, 3, 430)).category == "abort", "this one lost nobody"


def test_who_did_not_come_to_a_barrier_is_named_by_who_checked_it() -> None:
    checked = "RuntimeError: Rank {} failed to pass monitoredBarrier in 300000 ms\n"
    one, other = checked.format(3), checked.format(2)
    assert (read(one).category, read(one).rank) == ("collective_timeout", 3)
    assert read(one + other).rank is None


def test_a_job_that_logged_an_error_and_trained_on_was_interrupted_later() -> None:
    bars = "".join(f"  {n}%|=         | {n}000/50000 [0{n}:20<6:48:20, 2.00it/s]\n" for n in range(2, 7))
    stop = prefixed("[rank0]: ", f"{TRACE}KeyboardInterrupt\n")
    handled = f"{TRACE}urllib3.exceptions.ReadTimeoutError: Read timed out.\n"
    assert read(handled + bars + stop).category == "interrupted"
    assert read(handled + stop).category == "python_exception"


def test_two_pods_of_one_stream_are_not_two_attempts() -> None:
    pods = [f"[pod/job-worker-{n}/main] " for n in range(2)]
    logs = [prefixed(pod, text) for text in (REFUSED, failed(1, 0, 9)) for pod in pods]
    assert read("".join(logs)).category == "hub_access"


def test_slurm_may_say_in_its_own_order_that_all_is_well() -> None:
    tuned = "Batch size 128 failed, trying 96 due to: CUDA out of memory.\n"
    steps = "epoch 1 loss 2\nepoch 2 loss 1\nepoch 3 loss 1\n"
    moved = "slurmstepd: error: couldn't chdir to `/home/me/x': going to /tmp instead\n"
    assert read(tuned + steps + moved + "COMPLETED 88 0:0\n").category == "ok"
    assert read(tuned + steps + "FAILED 88 1:0\n").category != "ok"
