"""What stands beside an error that explains itself, and how sure a diagnosis may be then."""

from __future__ import annotations

import pytest

from tests.unit.test_triage_care import table
from tests.unit.test_triage_kinds import AGENT, failed, read
from tests.unit.test_triage_rules import HEADER, raised

OWN = '  File "/app/train.py", line 5, in step\n'
ENDED = failed(1, 2, 42) + table((1, 2, 42))
ASIDES = [
    "tracker: ERROR could not send: No space left on device",
    "cp: error writing '/tmp/x': No space left on device",
    "git: command not found",
    "/bin/sh: 1: nvcc: not found",
    "W0101 net.cpp] address already in use, taking port 29501",
    "2026-01-01 10:00:00 ERROR sampler: too many open files",
]
UNSIGNED = "OSError: [Errno 24] Too many open files (in the sampler, ignored)"


@pytest.mark.parametrize("aside", ASIDES)
@pytest.mark.parametrize("error", ["KeyError: 3", "TypeError: f() got an unexpected x", "IndexError: out of range"])
@pytest.mark.parametrize("author", ["", "[rank0]: "])
def test_a_line_in_passing_is_not_why_a_script_failed_of_its_own_error(aside: str, error: str, author: str) -> None:
    for log in (f"{author}{aside}\n{raised(2, error)}{ENDED}", f"{raised(2, error)}{author}{aside}\n{ENDED}"):
        verdict = read(log)
        assert (verdict.category, verdict.rank, verdict.confidence) == ("python_exception", 2, "likely")
    assert read(f"{author}{aside}\n{HEADER}{OWN}{error}\n").category == "python_exception"


@pytest.mark.parametrize("aside", ASIDES)
@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: the writer failed",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "AssertionError",
        "SystemError: x",
    ],
)
def test_an_error_that_does_not_say_why_is_explained_by_a_line(aside: str, error: str) -> None:
    assert read(f"{aside}\n{HEADER}{OWN}{error}\n").category != "python_exception"


@pytest.mark.parametrize(
    "line", ["Segmentation fault (core dumped)", "free(): invalid pointer", "tee: No space left on device", "Killed"]
)
def test_what_a_shell_says_below_a_message_of_one_line_is_no_part_of_it(line: str) -> None:
    verdict = read(f"{HEADER}{OWN}KeyError: 3\n{line}\n")
    assert verdict.category == "python_exception"
    assert line not in verdict.initiator.raised.message


def test_a_record_or_a_kernels_assertion_beside_an_error_still_counts() -> None:
    kernel = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=42, GPU has fallen off the bus.\n"
    assert read(kernel + raised(2, "KeyError: 3") + ENDED).category == "gpu_hardware"
    assertion = "K.cu:9: f: block: [1,0,0], thread: [0,0,0] Assertion `x < n` failed.\n"
    assert read(assertion + raised(2, "KeyError: 3") + ENDED).category == "cuda_device_assert"


def test_of_two_ranks_with_different_errors_neither_is_certain() -> None:
    verdict = read(f"[rank0]: {UNSIGNED}\n{raised(2, 'KeyError: 3')}")
    assert (verdict.rank, verdict.confidence) == (None, "likely")
    assert read(f"{UNSIGNED}\n{raised(2, 'KeyError: 3')}").rank == 2


@pytest.mark.parametrize("aside", [*ASIDES, "prepare.py: error: unrecognized arguments: --x"])
@pytest.mark.parametrize("code", [-9, -11, -7])
def test_who_was_killed_or_crashed_did_not_end_of_what_a_program_says_and_leaves(aside: str, code: int) -> None:
    end = failed(code, 2, 42) + table((code, 2, 42))
    assert read(f"{aside}\n{end}").category == read(end).category
    assert read(f"{aside}\n{ENDED}").category not in ("insufficient_evidence", read(end).category)


DOG = (
    "[rank{n}]:[E101 10:00:00.5 ProcessGroupNCCL.cpp:632] [Rank {n}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=1000) ran for 1001 milliseconds before timing out.\n"
)
WAITED = DOG.format(n=0) + DOG.format(n=1) + failed(-6, 0, 40) + table((-6, 0, 40), (-6, 1, 41))


@pytest.mark.parametrize("aside", ASIDES)
def test_a_line_of_nobody_beside_a_wait_is_less_sure(aside: str) -> None:
    assert read(f"{aside}\n{WAITED}").confidence == "likely"


@pytest.mark.parametrize(
    ("above", "category"),
    [
        ("Error in atexit._run_exitfuncs:", "collective_timeout"),
        ("future: <Task finished name='Task-3' coro=<f()>>", "python_exception"),
        ("Exception in thread Sampler:", "python_exception"),
    ],
)
def test_what_python_prints_in_passing_is_no_certain_cause(above: str, category: str) -> None:
    verdict = read(f"{above}\n{HEADER}{OWN}KeyError: 3\n{WAITED}")
    assert (verdict.category, verdict.confidence) == (category, "likely")


def test_a_crash_of_another_program_does_not_explain_a_kill() -> None:
    killed = failed(-9, 2, 42) + table((-9, 2, 42))
    assert read("helper exited with code 139\n" + killed).category == "sigkill_unattributed"
    assert read("helper exited with code 139\n").category == "segfault"


def test_a_usage_of_another_program_is_less_sure() -> None:
    usage = "usage: prepare.py [-h]\nprepare.py: error: unrecognized arguments: --x\n"
    assert read(usage + failed(2, 2, 42) + table((2, 2, 42))).confidence == "confirmed"
    assert read(usage + ENDED).confidence == "likely"


def test_a_device_that_fell_off_beside_an_error_of_a_script_is_less_sure() -> None:
    kernel = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid={}, GPU has fallen off the bus.\n"
    assert read(kernel.format(977) + raised(2, "KeyError: 3") + ENDED).confidence == "likely"
    assert read(kernel.format(42) + raised(2, "KeyError: 3") + ENDED).confidence == "confirmed"


@pytest.mark.parametrize("number", [63, 92])
def test_a_record_of_a_repair_is_no_fault_of_a_device(number: int) -> None:
    kernel = f"kernel: NVRM: Xid (PCI:0000:3b:00): {number}, pid=9, row remapping event\n"
    assert read(kernel + raised(2, "KeyError: 3") + ENDED).category == "python_exception"


@pytest.mark.parametrize("other", [failed(-9, 1, 41) + table((-9, 1, 41)), failed(1, 1, 41) + table((1, 1, 41))])
def test_an_exception_of_a_rank_that_torchrun_does_not_tell_of_is_less_sure(other: str) -> None:
    verdict = read(raised(2, "KeyError: 3") + other)
    assert (verdict.category, verdict.rank, verdict.confidence) == ("python_exception", 2, "likely")


def test_a_stop_that_is_followed_by_an_error_of_the_script_is_less_sure() -> None:
    stop = AGENT + "Received 15 death signal, shutting down workers\n"
    assert read(stop).confidence == "confirmed"
    verdict = read(stop + raised(2, "KeyError: 3"))
    assert (verdict.category, verdict.confidence) == ("sigterm_unattributed", "likely")


@pytest.mark.parametrize(
    ("message", "category", "confidence"),
    [
        ("ValueError: such a batch would run CUDA out of memory", "cuda_oom", "likely"),
        ("AssertionError: expected CUDA error: device-side assert triggered", "cuda_device_assert", "likely"),
        ("KeyError: 'No space left on device'", "disk_full", "likely"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "cuda_oom", "confirmed"),
        ("OSError: [Errno 28] No space left on device", "disk_full", "confirmed"),
    ],
)
def test_a_script_that_quotes_the_words_of_a_machine_is_less_sure(message: str, category: str, confidence: str) -> None:
    verdict = read(raised(2, message) + ENDED)
    assert (verdict.category, verdict.rank, verdict.confidence) == (category, 2, confidence)


def test_a_quoted_line_of_an_earlier_run_is_an_aside() -> None:
    quoted = "> RuntimeError: CUDA error: device-side assert triggered\n"
    assert read(quoted + raised(2, "KeyError: 3") + ENDED).category == "python_exception"


def test_a_line_of_a_rank_that_did_not_end_beside_one_that_did_is_less_sure() -> None:
    line = "[rank1]: loss is nan at step 3, stopping\n"
    crash = failed(-11, 2, 42) + table((-11, 2, 42))
    assert read(line + failed(1, 1, 41) + table((1, 1, 41))).confidence == "confirmed"
    assert read(line + crash).confidence == "likely"
