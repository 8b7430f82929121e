"""Rules of the triage that hold for any wording: who wrote a line, when, what else it was, and what came first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.test_triage_kinds import AGENT, OUT_OF_MEMORY, failed, read
from traceml_daemon.commands.diagnosing import diagnose

HEADER = "Traceback (most recent call last):\n"
STOPPED = AGENT.replace("E0101", "W0101") + "Received 15 death signal, shutting down workers\n"


def raised(rank: int, message: str, prefix: str = "") -> str:
    lines = f'{HEADER}  File "/w/train.py", line 4, in step\n{message}\n'.splitlines()
    return "".join(f"{prefix}[rank{rank}]: {line}\n" for line in lines)


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,3]<stderr>:",
        "(worker1, rank=1, pid=3211, ip=192.0.2.3) ",
        "trainer-0-abc12 pytorch | ",
        "2026-01-01T10:00:02.123456+00:00 node-a torchrun[60]: ",
        "10:00:02.123 | ",
        "[2026-01-01 10:00:02,123][train][INFO] - ",
        "    {n}: ",
        "    ",
    ],
)
@pytest.mark.parametrize("log", [raised(3, "torch.OutOfMemoryError: CUDA out of memory."), OUT_OF_MEMORY])
def test_a_prefix_that_nobody_knows_is_learned_from_where_a_traceback_begins(prefix: str, log: str) -> None:
    lines = ("step 1 loss 2.0\n" + log + failed(1, 3, 5001)).splitlines(keepends=True)
    verdict = read("".join(prefix.format(n=n) + line for n, line in enumerate(lines, 1)))
    assert (verdict.category, verdict.rank) == ("cuda_oom", 3)


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [("(rank 3) ", 3), ("[RANK 3] ", 3), ("R3| ", 3), ("(node rank 3) ", None), ("local rank 3: ", None)],
)
def test_a_rank_in_such_a_prefix_is_the_ranks_own(prefix: str, rank: int | None) -> None:
    assert read("".join(prefix + line for line in OUT_OF_MEMORY.splitlines(keepends=True))).rank == rank


@pytest.mark.parametrize(
    "record",
    [
        {"log": "{}", "stream": "stderr", "kubernetes": {"pod_name": "job-0"}},
        {"ts": "2026-01-01T10:00:02Z", "level": "info", "msg": "{}"},
        {"timestamp": "2026-01-01T10:00:02Z", "jsonPayload": {"message": "{}"}},
    ],
)
def test_a_record_in_json_is_read_as_the_line_that_it_holds(record: dict[str, str]) -> None:
    texts = ("step 1\n" + OUT_OF_MEMORY + failed(1, 3, 5001)).splitlines()
    log = "".join(json.dumps(record).replace("{}", json.dumps(text)[1:-1]) + "\n" for text in texts)
    verdict = read(log)
    assert (verdict.category, verdict.rank) == ("cuda_oom", 3)
    assert all(place.quote in log.splitlines()[place.line - 1] for place in verdict.evidence)


@pytest.mark.parametrize(
    ("early", "late", "rank"),
    [
        ("10:00:02", "10:00:32", 5),
        ("10:00:02", "10:00:05", 5),
        ("10:00:32", "10:00:02", 2),
        ("10:00:02", "10:00:03", None),
    ],
)
def test_the_error_that_the_clocks_put_first_gives_the_rank_and_the_category(
    early: str, late: str, rank: int | None
) -> None:
    memory = raised(2, "torch.OutOfMemoryError: CUDA out of memory.", f"2026-01-01T{late}Z ")
    key = raised(5, "KeyError: 'x'", f"2026-01-01T{early}Z ")
    for verdict in (read(memory, key), read(key, memory)):
        assert verdict.rank == rank
        if rank is not None:
            assert verdict.category == ("python_exception" if rank == 5 else "cuda_oom")


def test_an_error_that_other_ranks_repeat_is_the_one_ranks() -> None:
    quota = '  File "/w/save.py", line 9, in write\nOSError: [Errno 122] Disk quota exceeded'
    repeated = f"CheckpointException ranks:dict_keys([3])\n{HEADER.rstrip()} (RANK 3)\n{quota}"
    log = "".join(raised(rank, f"torch.distributed.checkpoint.api.CheckpointException: {repeated}") for rank in (0, 1))
    verdict = read(raised(3, "OSError: [Errno 122] Disk quota exceeded") + log)
    assert (verdict.category, verdict.rank, verdict.confidence) == ("disk_full", 3, "confirmed")


@pytest.mark.parametrize(
    ("log", "category"),
    [
        ("srun: error: n1: task 0: Exited with exit code 1\n" + STOPPED
         + "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T10:00:02 ***\n", "insufficient_evidence"),
        (STOPPED + "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T10:00:02 ***\n"
         "srun: error: n1: task 0: Exited with exit code 1\n", "preempted_or_cancelled"),
        ("srun: error: n1: task 0: Exited with exit code 1\n"
         "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T10:00:02 DUE TO TIME LIMIT ***\n",
         "preempted_or_cancelled"),
        ("srun: error: n2: task 1: Killed\n" + STOPPED
         + "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T10:00:02 ***\n", "sigkill_unattributed"),
    ],
)  # fmt: skip
def test_a_scheduler_that_cleans_up_behind_a_failed_task_gives_no_reason(log: str, category: str) -> None:
    assert read(log).category == category


@pytest.mark.parametrize(
    ("log", "category", "rank"),
    [
        ("  log-shipper:\n    Last State: Terminated\n      Reason: OOMKilled\n      Exit Code: 137\n"
         + raised(0, "KeyError: 'x'") + failed(1, 0, 5001), "python_exception", 0),
        ("  trainer:\n    Last State: Terminated\n      Reason: OOMKilled\n      Exit Code: 137\n"
         + raised(0, "ValueError: x") + failed(-9, 0, 5001), "host_oom_kill", 0),
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: misaligned address\n"
         + failed(-6, 2, 5001), "cuda_illegal_access", 2),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
         + failed(-6, 2, 5001) + failed(-6, 3, 5002).replace(" 21000 ", " 22000 "), "host_memory_error", None),
        ("train.py: error: unrecognized arguments: --rate=3\n" + failed(2, 2, 5001), "bad_cli_args", 2),
        ("supervisor: no progress for 900 s; rank 3 has not finished step 12\n" + STOPPED, "hang", 3),
        ("supervisor: no progress for 900 s; ranks 3 and 4 are behind\n" + STOPPED, "hang", None),
        (HEADER + '  File "/w/a.py", line 4, in f\nAttributeError: no such thing\n\n== config ==\n'
         "  find_unused_parameters: true\n" + raised(3, "OSError: [Errno 116] Stale file handle") + failed(1, 3, 5001),
         "python_exception", 3),
        (raised(3, "ValueError: polars.Chunk size changed, may indicate binary incompatibility. "
                "Expected 96 from C header, got 88 from PyObject"), "import_error", 3),
        (raised(3, "AssertionError: expected 8 GPUs but found 4"), "wrong_world_size", 3),
        (raised(3, "RuntimeError: expected 4D input but got 3D input"), "shape_or_dtype_error", 3),
    ],
)  # fmt: skip
def test_what_a_line_belongs_to(log: str, category: str, rank: int | None) -> None:
    verdict = read(log)
    assert (verdict.category, verdict.rank) == (category, rank)


def steps(first: int, last: int) -> str:
    return "".join(f"step {number} | loss 2.{number}\n" for number in range(first, last))


BANNER = AGENT.replace("E0101", "W0101") + "Setting OMP_NUM_THREADS environment variable for each process to be 1\n"
FAILED_AND_ENDED = failed(1, 1, 500) + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
CAUGHT = HEADER + '  File "/w/a.py", line 4, in f\n' + "FileNotFoundError: [Errno 2] No such file or directory: '/x'\n"


@pytest.mark.parametrize(
    ("log", "category", "rank"),
    [
        (CAUGHT + steps(5, 9) + raised(3, "KeyError: 'x'") + failed(1, 3, 5001), "python_exception", 3),
        (raised(0, "ConnectionError: metrics") + steps(5, 9) + raised(3, "torch.OutOfMemoryError: CUDA out of memory."),
         "cuda_oom", 3),
        (CAUGHT + steps(5, 9) + failed(-9, 3, 5001), "sigkill_unattributed", 3),
        (CAUGHT + steps(5, 9) + "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026 DUE TO TIME LIMIT ***\n",
         "preempted_or_cancelled", None),
        (CAUGHT + steps(5, 7) + raised(3, "KeyError: 'x'") + failed(1, 3, 5001), "file_not_found", 3),
        (raised(3, "KeyError: 'x'") + steps(5, 9) + raised(1, "ValueError: y") + failed(1, 3, 5001),
         "python_exception", None),
        (CAUGHT + steps(5, 9) + failed(1, 3, 5001), "file_not_found", 3),
    ],
)  # fmt: skip
def test_an_error_behind_which_work_went_on_did_not_end_the_job(log: str, category: str, rank: int | None) -> None:
    verdict = read("step 1 | loss 2.1\n" + log)
    assert (verdict.category, verdict.rank) == (category, rank)


@pytest.mark.parametrize(
    ("log", "category", "rank"),
    [
        (BANNER + OUT_OF_MEMORY + FAILED_AND_ENDED + BANNER + raised(2, "KeyError: 'x'") + failed(1, 2, 600),
         "python_exception", 2),
        (BANNER + OUT_OF_MEMORY + FAILED_AND_ENDED + BANNER + steps(1, 9) + "Training complete\n", "ok", None),
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-01-01T1:1:1 DUE TO JOB REQUEUE ***\n"
         + BANNER + raised(2, "KeyError: 'x'") + failed(1, 2, 600), "python_exception", 2),
        (BANNER + BANNER.replace("21000", "22000") + OUT_OF_MEMORY + failed(1, 1, 500), "cuda_oom", 1),
        (BANNER + OUT_OF_MEMORY + FAILED_AND_ENDED + BANNER, "cuda_oom", 1),
        ("Reason: OOMKilled\nExit Code: 137\n" + BANNER + steps(1, 9) + failed(-9, 2, 600), "host_oom_kill", 2),
    ],
)  # fmt: skip
def test_a_launch_behind_the_end_of_a_job_begins_another_attempt(log: str, category: str, rank: int | None) -> None:
    verdict = read(log)
    assert (verdict.category, verdict.rank) == (category, rank)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank_3.log", 3), ("stderr.rank3", 3), ("job-rank-3.err", 3), ("local_rank3.log", None), ("frank3.log", None)],
)
def test_a_file_that_is_named_after_a_rank_is_that_ranks(
    name: str, rank: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(OUT_OF_MEMORY)
    diagnose([str(tmp_path / name)], None, form="json", bundle=None)
    answer = json.loads(capsys.readouterr().out)
    assert (answer["category"], answer["initiating_rank"]) == ("cuda_oom", rank)


@pytest.mark.parametrize(
    "herring",
    [
        "bash: module: command not found\n",
        "OSError: [Errno 28] No space left on device while writing the cache, going on without\n",
        'sample 3: "RuntimeError: CUDA error: device-side assert triggered"\n',
        "INFO preemption notice: none so far\n",
    ],
)
def test_a_line_behind_which_work_went_on_is_not_the_cause(herring: str) -> None:
    verdict = read(steps(1, 5) + herring + steps(5, 30) + raised(3, "KeyError: 'x'") + failed(1, 3, 5001))
    assert (verdict.category, verdict.rank) == ("python_exception", 3)


@pytest.mark.parametrize(
    ("log", "category"),
    [
        ("Spot instance interruption notice received\n" + steps(5, 30) + STOPPED, "preempted_or_cancelled"),
        ("INFO preemption notice handler installed\n" + STOPPED, "sigterm_unattributed"),
        ("limit is 24 h, will checkpoint before TimeLimit\n" + STOPPED, "sigterm_unattributed"),
        ("JobState=TIMEOUT Reason=TimeLimit\n" + STOPPED, "preempted_or_cancelled"),
    ],
)
def test_a_notice_of_a_stop_is_its_reason_and_a_handler_for_one_is_not(log: str, category: str) -> None:
    assert read(steps(1, 5) + log).category == category


@pytest.mark.parametrize(
    ("tail", "category"),
    [
        ("Training complete\nwandb: ERROR failed to upload 3 files\n", "ok"),
        ("[rank3]:[W101 x.cpp:125] [c10d] recvValue failed on SocketImpl(fd=1): reset\nTraining complete\n", "ok"),
        ("Training complete\nupload ERROR failed\n", "insufficient_evidence"),
        ("[rank3]: RuntimeError: Connection closed by peer\nTraining complete\n", "collateral_only"),
        ("1 process returned a non-zero exit code\n", "insufficient_evidence"),
    ],
)
def test_what_stands_at_the_end_of_a_good_run(tail: str, category: str) -> None:
    assert read(steps(1, 9) + tail).category == category


@pytest.mark.parametrize(
    ("line", "category", "rank"),
    [
        ("watchdog: rank 5 is stuck at step 119, the others are at 120", "hang", 5),
        ("Heartbeat lost: rank 5 answered last 900 s ago", "hang", 5),
        ("no step finished in the last 1800 seconds, ending the job", "hang", None),
        ("no step is saved before step 1800", "sigterm_unattributed", None),
        ("rank 5 is ready", "sigterm_unattributed", None),
    ],
)
def test_who_did_not_move_is_the_one_that_a_supervisor_names(line: str, category: str, rank: int | None) -> None:
    verdict = read(f"{steps(1, 9)}{line}\n{STOPPED}")
    assert (verdict.category, verdict.rank) == (category, rank)


def test_of_two_processes_with_one_number_a_kill_took_the_killed_one() -> None:
    table = (
        "Root Cause (first observed failure):\n[0]:\n  rank      : {} (local_rank: 1)\n  exitcode  : {} (pid: 5001)\n"
    )
    kernel = "kernel: Out of memory: Killed process 5001 (python)\n"
    assert read(table.format(1, 1), kernel, table.format(9, -9)).rank == 9


@pytest.mark.parametrize(
    ("early", "late", "rank"),
    [
        ("Jan  1 10:00:02 node-a train[7]: ", "Jan  1 10:00:32 node-b train[7]: ", 5),
        ("[10:00:02] ", "[10:00:32] ", 5),
        ("1767261602.1 ", "1767261632.1 ", 5),
        ("[10:00:02] ", "2026-01-01T10:00:32 ", None),
        ("[23:59:58] ", "[00:00:28] ", None),
    ],
)
def test_clocks_of_any_style_are_compared_with_their_like(early: str, late: str, rank: int | None) -> None:
    def stamped(prefix: str, log: str) -> str:
        return "".join(prefix + line for line in log.splitlines(keepends=True))

    logs = stamped(early, raised(5, "KeyError: 'x'")), stamped(late, raised(2, "ValueError: y"))
    assert read(*logs).rank == read(*logs[::-1]).rank == rank


def test_one_clock_of_fine_grain_tells_two_errors_of_one_file_apart() -> None:
    def log(early: str, late: str) -> tuple[str, str]:
        return raised(5, "KeyError: 'x'", f"2026-01-01T{early} "), raised(2, "ValueError: y", f"2026-01-01T{late} ")

    assert read("".join(log("10:00:02.100", "10:00:02.900"))).rank == 5
    assert read("".join(log("10:00:02.100", "10:00:02.200"))).rank is None
    assert read("".join(log("10:00:02", "10:00:03"))).rank is None
    assert read(*log("10:00:02.100", "10:00:02.900")).rank is None


def test_what_an_agent_says_of_its_ranks_turns_local_ones_into_global_ones() -> None:
    said = AGENT + "  global_ranks=[4, 5, 6, 7]\n"
    assert read("step 1\n", said + OUT_OF_MEMORY + failed(1, 1, 5001)).rank == 5
    assert read(said + failed(-9, 3, 5001)).rank == 7
    assert read(said + "[default2]:" + OUT_OF_MEMORY.splitlines()[-1] + "\n").rank == 6
    assert read(said + said.replace("4, 5, 6, 7", "0, 1, 2, 3") + OUT_OF_MEMORY + failed(1, 1, 5001)).rank is None
