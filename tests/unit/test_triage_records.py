"""What records around an error tell: their times, whose they are, how far the ranks were, and how it all ended."""

from __future__ import annotations

import json

import pytest

from tests.unit.test_odd_replica import counts, shapes
from tests.unit.test_triage_care import table
from tests.unit.test_triage_kinds import AGENT, OUT_OF_MEMORY, failed, read
from tests.unit.test_triage_rules import HEADER, STOPPED, raised

FRAME = '  File "a.py", line 3, in f\n'


def as_json(rank: int, when: object, text: str) -> str:
    return json.dumps({"ts": when, "rank": rank, "level": "ERROR", "msg": text}) + "\n"


@pytest.mark.parametrize(
    ("early", "late", "rank"),
    [
        ("2026-01-01T10:00:01.5Z", "2026-01-01T10:00:05.5Z", 3),
        (1767261601.5, 1767261605.5, 3),
        (1767261601500, 1767261605500, 3),
        ("1767261601.5", "1767261605.5", 3),
        ("2026-01-01T10:00:01.5Z", "2026-01-01T10:00:01.6Z", None),
    ],
)
def test_of_records_the_time_counts_and_not_the_order(early: object, late: object, rank: int | None) -> None:
    second = as_json(0, late, f"{HEADER}{FRAME}UnboundLocalError: no batch_id")
    verdict = read(second + as_json(3, early, OUT_OF_MEMORY) + as_json(1, late, "step 3 of 10"))
    assert verdict.rank == rank
    assert rank is None or verdict.category == "cuda_oom"


def test_a_traceback_in_a_field_of_its_own_is_read() -> None:
    record = {"time": "2026-01-01T10:00:01Z", "rank": 2, "message": "step failed", "exc_info": OUT_OF_MEMORY.strip()}
    verdict = read(json.dumps(record) + "\n")
    assert (verdict.category, verdict.rank) == ("cuda_oom", 2)


def logged(second: float, level: str, rank: int, message: str) -> str:
    return (
        f"2026-01-01 10:00:{second:06.3f} | {level:8} | rank={rank} | a:f:3 - it went wrong\n{HEADER}{FRAME}{message}\n"
    )


@pytest.mark.parametrize(
    ("level", "late", "rank"), [("ERROR", 9.5, 4), ("CRITICAL", 9.5, 4), ("INFO", 9.5, None), ("ERROR", 2.0, None)]
)
def test_a_traceback_was_raised_when_the_record_above_it_says(level: str, late: float, rank: int | None) -> None:
    first = logged(1.5, level, 4, "RuntimeError: eos 2 is not eos 3")
    assert (
        read(logged(late, level, 1, "FileNotFoundError: [Errno 2] No such file or directory: '/x'"), first).rank == rank
    )


NODE_0 = f"{HEADER}{FRAME}torch.distributed.DistBackendError: store->get('0') got error: Connection reset by peer\n"
NODE_1 = f"{HEADER}{FRAME}ModuleNotFoundError: No module named 'wds'\n"
ENDED = "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 0)\n  exitcode  : 1 (pid: 7)\n"


def test_an_exit_of_one_node_is_not_that_of_a_lost_peer_on_another() -> None:
    log = NODE_1 + failed(1, 0, 7) + ENDED
    assert (read(NODE_0, log).category, read(NODE_0, log).rank) == ("import_error", 1)
    assert read(NODE_0 + log).rank is None


@pytest.mark.parametrize(
    ("ranks", "hosts", "rank"),
    [
        ((17, 16), ("n2", "n0"), None),
        ((17, 16), ("n0", "n0"), None),
        ((2, 1), ("n2", "n0"), None),
        ((2, 1), ("a", "a"), 0),
    ],
)
def test_a_count_on_one_node_names_no_rank_where_the_node_is_not_the_first(
    ranks: tuple[int, int], hosts: tuple[str, str], rank: int | None
) -> None:
    store = "recvValue failed on SocketImpl(fd=6, addr=[{}]:52, remote=[{}]:29400): Connection reset by peer\n"
    log = f"[rank{ranks[0]}]: {store.format(*hosts)}"
    log += raised(ranks[1], "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:9")
    verdict = read(log + failed(1, 0, 655))
    assert verdict.rank == rank
    assert verdict.category == ("collateral_only" if rank is None else "insufficient_evidence")


@pytest.mark.parametrize(
    ("device", "rank"), [("GPU 1 has a total capacity of 8 GiB", 1), ("GPU 0 has a total capacity of 8 GiB", None)]
)
def test_of_two_that_failed_the_one_is_named_whose_device_was_full(device: str, rank: int | None) -> None:
    lost = f"{HEADER}{FRAME}torch.distributed.DistBackendError: remote process exited or there was a network error\n"
    log = OUT_OF_MEMORY.rstrip() + f" {device}\n" + lost + failed(1, 0, 40) + table((1, 1, 41), (1, 0, 40))
    assert (read(log).category, read(log).rank) == ("cuda_oom", rank)


@pytest.mark.parametrize(
    ("line", "category", "rank"),
    [
        ("FATAL g.py:3 non-finite loss nan at step 12 on rank 2 -- stopping the run", "numerical_failure", 2),
        ("rank 2: grad norm is inf, aborting", "numerical_failure", 2),
        ("Loss is nan, stopping training", "numerical_failure", None),
        ("non-finite loss nan on rank 3, skipping the update", "insufficient_evidence", 2),
        ("stopping criterion: loss below 0.1", "insufficient_evidence", 2),
        ("loss info: exiting warm-up", "insufficient_evidence", 2),
    ],
)
def test_a_guard_that_stops_the_run_says_why(line: str, category: str, rank: int | None) -> None:
    verdict = read(f"step 11 loss 1.9\n{line}\n{failed(1, 2, 62)}")
    assert (verdict.category, verdict.rank) == (category, rank)


HUNG = "no progress for 1800 s, dumping stacks\n"


@pytest.mark.parametrize(
    ("record", "rank"),
    [
        ("heartbeat rank 0 step 813 | rank 1 step 813 | rank 2 step 812\n", 2),
        ("heartbeat rank 0: step=813, rank 1: step=813, rank 2: step=812\n", 2),
        ("steps by rank: 0=813 1=813 2=812\n", 2),
        (HUNG + "  rank 0: step 813, all_reduce\n  rank 1: step 812, wait\n  rank 2: step 813, all_reduce\n", 1),
        (HUNG + "  rank 0: step 813\n\n  rank 1: step 813\n\n  rank 2: step 812\n", None),
        ("heartbeat rank 0 step 813 | rank 1 step 813 | rank 2 step 813\n" + HUNG + "rank 0: step 812 loss 2\n", None),
        ("heartbeat rank 0 step 813 | rank 1 step 812 | rank 2 step 812\n", None),
        ("heartbeat rank 0 step 813 | rank 1 step 813 | rank 2 step 813\n", None),
    ],
)
def test_a_record_of_progress_names_who_did_not_move_in_a_hang(record: str, rank: int | None) -> None:
    first = "heartbeat rank 0 step 700 | rank 1 step 699 | rank 2 step 700\n"
    verdict = read((first if "heartbeat" in record else "") + record + HUNG, STOPPED)
    assert (verdict.category, verdict.rank) == ("hang", rank)
    healthy = record.replace(HUNG, "") + "step 814 loss 2.0\nTraining finished\n"
    assert read(healthy).category == "ok"


TESTED = "t.py::test_mismatch\nRuntimeError: Detected mismatch between collectives on ranks.\n" + failed(1, 0, 7)


@pytest.mark.parametrize(
    ("log", "category"),
    [
        (TESTED + "===== 4 passed, 1 xfailed in 30.88s =====\n", "ok"),
        (TESTED + "4 passed, 2 skipped, 3 warnings in 3.1s (0:00:03)\n", "ok"),
        (TESTED + "\x1b[32m== \x1b[1m4 passed\x1b[0m, \x1b[33m1 skipped\x1b[0m\x1b[32m in 3.1s\x1b[0m ==\n", "ok"),
        (
            TESTED + "\x1b[31m== \x1b[1m1 failed\x1b[0m, \x1b[33m4 passed\x1b[0m\x1b[32m in 3.1s\x1b[0m ==\n",
            "collective_mismatch",
        ),
        (TESTED + "===== 1 failed, 4 passed in 30.88s =====\n", "collective_mismatch"),
        ("4 passed in 3.10s\n" + TESTED, "collective_mismatch"),
        (TESTED + "4 passed in 3.10s\n##[error]Process completed with exit code 1.\n", "collective_mismatch"),
    ],
)
def test_what_tests_print_is_no_failure_where_all_passed(log: str, category: str) -> None:
    assert read(log).category == category


PREEMPTED = (
    "step 1000 loss 3.3\nslurmstepd: error: *** JOB 21 ON a7 CANCELLED AT 2026-01-01T07:07:07 DUE TO PREEMPTION ***\n"
)


@pytest.mark.parametrize(
    ("behind", "category"),
    [
        ("[start 2] from ckpt\nstep 2000 loss 3.1\n$ sacct -j 21\n21      COMPLETED      0:0\n", "ok"),
        ("[start 2] from ckpt\nstep 2000 loss 3.1\n21|train|COMPLETED|0:0|\n", "ok"),
        ("step 2000 loss 3.1\n21      COMPLETED      0:0\n21.0   CANCELLED by 0   0:15\n", "preempted_or_cancelled"),
        ("step 2000 loss 3.1\n21      PREEMPTED      0:0\n21.extern  COMPLETED   0:0\n", "preempted_or_cancelled"),
        ("$ sacct -j 21\n21      COMPLETED      0:0\n", "preempted_or_cancelled"),
    ],
)
def test_a_job_that_was_queued_again_and_completed_is_well(behind: str, category: str) -> None:
    assert read(PREEMPTED + behind).category == category
    log = (PREEMPTED + behind).splitlines()
    assert (
        read("".join(json.dumps({"log": line + "\n", "stream": "stdout"}) + "\n" for line in log)).category == category
    )


@pytest.mark.parametrize(
    ("errors", "rank"),
    [
        ({0: counts(0, 4, 2, 6), 1: counts(1, 4, 2, 6), 2: counts(2, 6, 0, 4)}, 2),
        ({1: shapes(1), 2: shapes(2)}, 0),
        ({0: counts(0, 4, 2, 6), 1: counts(1, 4, 3, 6), 2: counts(2, 6, 0, 4), 3: counts(3, 6, 1, 4)}, None),
    ],
)
def test_of_replicas_that_differ_the_odd_one_is_named(errors: dict[int, str], rank: int | None) -> None:
    log = "".join(raised(one, f"RuntimeError: {message}") for one, message in errors.items())
    closing = f"{AGENT}Sending process 90 closing signal SIGTERM\n"
    verdict = read(log + closing + failed(1, 1, 91) + table((1, 2, 92), (1, 1, 91)))
    assert (verdict.category, verdict.rank) == ("ddp_model_mismatch", rank)
    if rank == 0:
        assert verdict.confidence == "likely"
        more = closing.replace("90", "95")
        assert read(log + closing + more + failed(1, 1, 91) + table((1, 2, 92), (1, 1, 91))).rank is None
        assert read(log).rank is None


@pytest.mark.parametrize(
    ("words", "category"),
    [
        ("ImportError: libGL.so.1: cannot open shared object file (optional, video is off)", "python_exception"),
        ("ModuleNotFoundError: No module named 'apex', ignoring", "python_exception"),
        (f"{HEADER}{FRAME}ImportError: no apex\nno fused kernels, falling back to torch", "python_exception"),
        (f"{HEADER}{FRAME}ImportError: no apex\nWARNING:root:continuing without apex", "python_exception"),
        (f"{HEADER}{FRAME}ImportError: no apex\nfall back to CPU with --cpu", "import_error"),
        ("ModuleNotFoundError: No module named 'apex'", "python_exception"),
    ],
)
def test_an_import_without_which_the_job_went_on_is_no_cause(words: str, category: str) -> None:
    assert read(f"{words}\nstep 1 loss 2.0\n{raised(1, 'KeyError: 3')}{failed(1, 1, 4)}").category == category


@pytest.mark.parametrize(
    ("line", "category"),
    [
        ("INFO:torch.distributed.elastic.agent.server.api:Done waiting for other agents. Elapsed: 1.2 seconds",
         "python_exception"),
        ("INFO:train:Done after 12 steps", "ok"),
        ("INFO:train:undone after 12 steps", "python_exception"),
    ],
)  # fmt: skip
def test_torchrun_is_done_waiting_after_a_failure_too(line: str, category: str) -> None:
    assert read(f"{raised(1, 'KeyError: 3')}step 11 loss 2\nstep 12 loss 2\n{line}\n").category == category
