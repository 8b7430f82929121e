"""Where the triage must be careful: what stands beside a cause and is none, and who was only a victim."""

from __future__ import annotations

import pytest

from tests.unit.test_triage_kinds import AGENT, failed, read
from tests.unit.test_triage_rules import HEADER, raised


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


KILLED = failed(-9, 1, 41) + table((-9, 1, 41))


@pytest.mark.parametrize(
    ("record", "category"),
    [
        ("Out of memory: Killed process 977 (mysqld) total-vm:9kB", "sigkill_unattributed"),
        ("oom-kill:constraint=CONSTRAINT_NONE,task=chrome,pid=977,uid=1000", "sigkill_unattributed"),
        ("Out of memory: Killed process 41 (mysqld) total-vm:9kB", "host_oom_kill"),
        ("Out of memory: Killed process 977 (python3) total-vm:9kB", "host_oom_kill"),
        ("Jan  1 09:59:58 n1 kernel: Out of memory: Killed process 977 (python3) total-vm:9kB", "host_oom_kill"),
        ("Jan  1 07:29:58 n1 kernel: Out of memory: Killed process 977 (python3) total-vm:9kB", "host_oom_kill"),
        ("Jan  1 09:48:10 n1 kernel: Out of memory: Killed process 977 (python3) total-vm:9kB", "sigkill_unattributed"),
        ("Jan  1 09:48:10 n1 kernel: Out of memory: Killed process 41 (python3) total-vm:9kB", "host_oom_kill"),
        ("task x invoked oom-killer: order=0\nOut of memory: Killed process 977 (mysqld)", "sigkill_unattributed"),
        ("task x invoked oom-killer: order=0\nOut of memory: Killed process 41 (python)", "host_oom_kill"),
        (
            "Out of memory: Killed process 9 (mysqld)\n" * 9 + "Out of memory: Killed process 41 (python)",
            "host_oom_kill",
        ),
    ],
)
def test_a_kernels_record_of_another_process_does_not_explain_a_kill(record: str, category: str) -> None:
    killed = KILLED.replace("E0101 20:57:27", "E0101 10:00:00")
    for verdict in (read(f"{record}\n{killed}"), read(killed, f"{record}\n")):
        assert (verdict.category, verdict.rank) == (category, 1)


@pytest.mark.parametrize(
    ("speakers", "tasks", "rank"),
    [
        ([(0, 0), (3, 3)], "2", 2),
        ([(0, 0), (3, 3)], "1-2", None),
        ([(0, 0), (2, 5)], "2", None),
        ([(0, 0)], "2", None),
        ([], "2", None),
    ],
)
def test_a_schedulers_task_is_a_rank_where_the_lines_show_it(
    speakers: list[tuple[int, int]], tasks: str, rank: int | None
) -> None:
    lost = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited"
    spoken = "".join(raised(rank, lost, f"{task}: ") for task, rank in speakers)
    record = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    )
    for log, category in (
        (f"{record}srun: error: n1: task {tasks}: Out Of Memory\n", "host_oom_kill"),
        (f"srun: error: n1: task {tasks}: Killed\n", "sigkill_unattributed"),
    ):
        verdict = read(spoken + log + "srun: error: n1: tasks 0,4-5: Terminated\n")
        assert (verdict.category, verdict.rank) == (category, rank)
        if rank is not None:
            assert set(verdict.collateral) == {0, 3, 4, 5}


@pytest.mark.parametrize(
    ("sent", "end", "collateral"),
    [
        ((40, 42, 43), (1, 41), {0, 2, 3}),
        ((40, 42, 55), (1, 41), {0, 2, 3}),
        ((42, 43), (1, 41), set()),
        ((39, 40, 42), (1, 41), set()),
        ((), (1, 41), set()),
    ],
)
def test_processes_that_torchrun_closed_are_the_ranks_of_their_place(
    sent: tuple[int, ...], end: tuple[int, int], collateral: set[int]
) -> None:
    closing = "".join(f"{AGENT.replace('E', 'W', 1)}Sending process {pid} closing signal SIGTERM\n" for pid in sent)
    log = closing + failed(1, *end)
    assert set(read(log + table((1, *end))).collateral) == collateral
    assert set(read(log + table((1, *end)).replace("rank      : 1 ", "rank      : 9 ")).collateral) == {
        rank + 8 for rank in collateral
    }


def test_workers_of_a_job_that_was_stopped_are_its_ranks_and_a_tie_names_no_victim() -> None:
    closing = "".join(f"{AGENT}Sending process {pid} closing signal SIGTERM\n" for pid in (41, 40))
    stop = f"{AGENT}Received 1 death signal, shutting down workers\n"
    assert read(stop + closing).collateral == {0: "sigterm_by_agent", 1: "sigterm_by_agent"}
    tie = raised(0, "ValueError: a") + raised(1, "KeyError: 2") + closing + failed(1, 2, 42)
    assert not read(tie + table((1, 2, 42))).collateral


def test_tasks_that_a_scheduler_ended_are_victims_of_the_rank_that_failed() -> None:
    log = f'3: {HEADER}3:   File "a.py", line 3, in f\n3: ValueError: x\n'
    ends = "srun: error: n1: task 3: Exited with exit code 1\nsrun: error: n1: tasks 0,2: Terminated\n"
    assert read(log + ends).collateral == {0: "sigterm_by_agent", 2: "sigterm_by_agent"}
    others = "2: [rank5]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited\n"
    assert set(read(log + others + ends).collateral) == {5}


def test_a_rank_without_a_watchdogs_line_is_the_one_that_raised() -> None:
    line = "[E ProcessGroupNCCL.cpp:474] [Rank {n}] Watchdog caught collective operation timeout: "
    line += "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=1000) ran for 1001 milliseconds before timing out.\n"
    ends = table(*((-6 if n != 6 else 1, n, 40 + n) for n in range(8)))
    error = f'{HEADER}  File "a.py", line 3, in f\nKeyError: 3\n'
    dogs = [line.format(n=n) for n in range(8) if n != 6]
    assert read(error + "".join(dogs) + ends).rank == 6
    assert read(error + "".join(dogs[1:]) + ends).rank is None


@pytest.mark.parametrize(
    ("log", "quotes"),
    [
        (
            "kernel: python invoked oom-killer: order=0\nkernel: Out of memory: Killed process 41 (python)\n" + KILLED,
            {1, 2},
        ),
        (
            "[rank0]: RuntimeError: Error(s) in loading state_dict for Net:\n"
            "[rank0]: \tsize mismatch for a.weight: copying a param with shape torch.Size([2]) from checkpoint\n",
            {1, 2},
        ),
        (failed(-11, 0, 41) + table((-11, 0, 41)) + "  traceback : Signal 11 (SIGSEGV) received by PID 41\n", {1, 7}),
    ],
)
def test_the_evidence_holds_each_line_that_says_the_cause(log: str, quotes: set[int]) -> None:
    assert quotes <= {place.line for place in read(log).evidence}


def test_a_quote_of_a_coloured_line_is_what_was_said_and_not_its_prefix() -> None:
    log = "\x1b[36m(RayTrainWorker pid=5512, ip=192.0.2.244)\x1b[0m double free or corruption (!prev)\n"
    verdict = read(log)
    assert (verdict.category, verdict.confidence) == ("abort", "likely")
    assert verdict.evidence[0].quote == "double free or corruption (!prev)"


@pytest.mark.parametrize("prefix", ["", "<7> ", "job/{n}~ "])
def test_an_unknown_prefix_is_learned_from_a_fatal_error_and_from_a_table(prefix: str) -> None:
    stack = (
        'Fatal Python error: Segmentation fault\n\nThread 0x01 (most recent call first):\n  File "a.py", line 3 in f\n'
    )
    for log, category in (
        (stack, "segfault"),
        (table((-11, 2, 42)), "segfault"),
        ("the log said Fatal python error once\n", "insufficient_evidence"),
    ):
        lines = log.splitlines(keepends=True)
        assert read("".join(prefix.format(n=n) + line for n, line in enumerate(lines, 1))).category == category


@pytest.mark.parametrize(
    ("victim", "end", "category"),
    [
        (99, failed(1, 1, 41), "insufficient_evidence"),
        (99, failed(-11, 1, 41), "segfault"),
        (41, failed(1, 1, 41), "host_oom_kill"),
        (99, failed(-9, 1, 41), "host_oom_kill"),
        (99, "Job step: exited with code 137\n" + failed(1, 1, 41), "host_oom_kill"),
        (99, "", "host_oom_kill"),
    ],
)
def test_a_record_of_a_stranger_explains_nothing_where_nothing_of_the_job_was_killed(
    victim: int, end: str, category: str
) -> None:
    assert read(f"kernel: Out of memory: Killed process {victim} (python)\n{end}").category == category
