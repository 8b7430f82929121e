"""More kinds of misleading logs: crowds of unsigned lines, codes of Windows, second tries, words in lower case."""

from __future__ import annotations

import pytest

from tests.unit.test_triage_care import table
from tests.unit.test_triage_kinds import AGENT, failed, read
from tests.unit.test_triage_rules import HEADER, raised
from traceml_daemon.commands.diagnosing import build_report

OWN = '  File "/app/train.py", line 5, in step\n'
SPAWNED = "torch.multiprocessing.spawn.ProcessExitedException: process {} terminated with {}\n"
LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1934"
ASSERTED = "Kernel.cu:9: f: block: [1,0,0], thread: [{},0,0] Assertion `x < n` failed.\n"


@pytest.mark.parametrize(
    "signed",
    [
        "[E ProcessGroupNCCL.cpp:915] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: device-side "
        "assert triggered\n",
        "  what():  [PG 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: device-side "
        "assert triggered\n",
        "[E101 10:00:00.5 ProcessGroupNCCL.cpp:915] [PG ID 0 PG GUID 0(default_pg) Rank 1] terminated with exception: "
        "CUDA error: device-side assert triggered\n",
    ],
)
@pytest.mark.parametrize("count", [1, 12])
def test_a_signed_line_is_not_lost_in_a_crowd_of_unsigned_ones(signed: str, count: int) -> None:
    crowd = "".join(ASSERTED.format(n) for n in range(count))
    verdict = read(crowd + signed + HEADER + OWN + SPAWNED.format(1, "signal SIGABRT"))
    assert (verdict.category, verdict.rank) == ("cuda_device_assert", 1)


@pytest.mark.parametrize(
    ("said_by", "code", "category"),
    [("", -9, "sigkill_unattributed"), ("[rank0]: ", -9, "python_exception"), ("", 1, "python_exception")],
)
def test_an_exception_that_somebody_logged_does_not_end_a_rank_by_a_kill(
    said_by: str, code: int, category: str
) -> None:
    tried_again = "".join(f"{said_by}{line}\n" for line in f"{HEADER}{OWN}KeyError: 7".splitlines())
    end = failed(code, 0, 40) + table((-15, 1, 41), (code, 0, 40))
    verdict = read(f"could not read part 7, next one\n{tried_again}step 10 loss 1.5\n{raised(1, LOST)}{end}")
    assert (verdict.category, verdict.rank) == (category, 0)


STARTER = '  File "D:\\v\\accelerate\\commands\\launch.py", line 10, in simple_launcher\n'
CALLED = "subprocess.CalledProcessError: Command '['D:\\\\python.exe', 'a.py']' returned non-zero exit status {}.\n"


@pytest.mark.parametrize(
    "told",
    [
        f"{HEADER}{STARTER}{CALLED}",
        "Process finished with exit code {}\n",
        "Command failed with exit code {}\n",
        "[launch.py:325:sigkill_handler] ['python.exe', 'a.py', '--local_rank=0'] exits with return code = {}\n",
        f"{HEADER}{OWN}{SPAWNED.format(0, 'exit code {}')}",
        AGENT + "failed (exitcode: {}) local_rank: 0 (pid: 40) of binary: D:\\v\\python.exe\n",
    ],
)
@pytest.mark.parametrize(
    ("code", "category"),
    [
        (0xC0000005, "segfault"),
        (0xC00000FD, "segfault"),
        (0xC0000409, "abort"),
        (0xC0000374, "abort"),
        (0xC000001D, "illegal_instruction"),
        (0xC0000094, "illegal_instruction"),
        (0xC000013A, "interrupted"),
    ],
)
def test_a_code_of_windows_is_read_as_the_signal_that_it_is_elsewhere(told: str, code: int, category: str) -> None:
    for number in (code, code - (1 << 32)):
        if number < 0 and "returned non-zero" in told:
            continue
        verdict = read("step 3 loss 2.0\n" + told.replace("{}", str(number)))
        assert (verdict.category, verdict.confidence) == (category, "likely")
        report = build_report(verdict, ["a.log"])
        assert (report.exit_code, report.signal) == (number, None)


def test_a_code_of_windows_in_hexadecimal() -> None:
    assert read("step 3 loss 2.0\nprocess exited with code 0xC0000005\n").category == "segfault"
    for code in ("0xC0000142", "3221225794", "-1073741502"):
        assert read(f"step 3 loss 2.0\nprocess exited with code {code}\n").category == "insufficient_evidence"


def test_a_peer_that_torchrun_closed_on_windows_is_no_victim_of_a_person() -> None:
    sent = AGENT.replace("E0101", "W0101") + "Sending process 40 closing signal CTRL_C_EVENT\n"
    verdict = read(sent + failed(0xC0000005, 1, 41) + table((0xC000013A, 0, 40), (0xC0000005, 1, 41)))
    assert (verdict.category, verdict.rank, verdict.collateral) == ("segfault", 1, {0: "sigterm_by_agent"})
    assert build_report(verdict, ["a.log"]).summary == "rank 1 was ended by an access violation (0xC0000005)"


@pytest.mark.parametrize(
    ("words", "category"),
    [
        ("access violation", "segfault"),
        ("stack overflow", "segfault"),
        ("code 0xc0000374", "abort"),
        ("int divide by zero", "illegal_instruction"),
    ],
)
def test_the_stacks_of_a_crash_on_windows(words: str, category: str) -> None:
    stacks = 'Current thread 0x00000f90 (most recent call first):\n  File "D:\\a.py", line 5 in step\n'
    assert read(f"Windows fatal exception: {words}\n\n{stacks}").category == category
    benign = f"Windows fatal exception: code 0x8001010d\n\n{stacks}"
    assert read(benign + raised(2, "ValueError: no")).category == "python_exception"
    assert read(benign).category == "insufficient_evidence"


LOADER = "RuntimeError: DataLoader worker (pid 51) is killed by signal: Terminated. \n"
CLOSING = '  File "/opt/lib/torch/utils/data/dataloader.py", line 10, in _shutdown_workers\n'
HANDLER = '  File "/opt/lib/torch/utils/data/_utils/signal_handling.py", line 6, in handler\n'


def test_a_loader_that_its_own_rank_terminated_was_not_stopped_from_outside() -> None:
    verdict = read(HEADER + OWN + CLOSING + HANDLER + LOADER)
    assert (verdict.category, verdict.confidence) == ("dataloader_worker_killed", "likely")
    relayed = f"{HEADER}{OWN}torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 6 terminated with the "
    relayed += f"following error:\n{HEADER}{OWN}{LOADER}"
    assert read(HEADER + OWN + CLOSING + HANDLER + LOADER + relayed).category == "dataloader_worker_killed"
    assert read(HEADER + OWN + HANDLER + LOADER).category == "sigterm_unattributed"
    stopped = AGENT + "Received 15 death signal, shutting down workers\n"
    assert read(stopped + HEADER + OWN + CLOSING + HANDLER + LOADER).category == "sigterm_unattributed"


DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("error", "category"),
    [
        ("KeyboardInterrupt", "interrupted"),
        ("KeyError: 3", "python_exception"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "cuda_oom"),
    ],
)
@pytest.mark.parametrize("signal", ["Terminated. ", "Killed. ", "Aborted. "])
def test_loaders_that_were_ended_for_an_error_are_not_its_cause(error: str, category: str, signal: str) -> None:
    ended = HEADER + OWN + CLOSING + HANDLER + LOADER.replace("Terminated. ", signal)
    assert read(f"{HEADER}{OWN}{error}\n{DURING}{ended}").category == category
    assert read(f"{HEADER}{OWN}{DURING}{ended}").category == "dataloader_worker_killed"


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ('OSError: [WinError 1455] The paging file is too small. Error loading "c10.dll"', "host_memory_error"),
        ('OSError: [WinError 126] The module was not found. Error loading "x.dll"', "import_error"),
        ('OSError: [WinError 1114] Initialization of a .dll failed. Error loading "c10.dll"', "import_error"),
        ("OSError: [WinError 193] %1 is no application. Error loading 'x.dll'", "import_error"),
    ],
)
def test_what_windows_says_of_libraries_and_memory(message: str, category: str) -> None:
    assert read(f"{HEADER}{OWN}{message}\n").category == category


RAYLET = "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
AGAIN = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
TAKEN = [
    "ValueError: The name pool_1 (namespace=None) is already taken.",
    "ValueError: Actor with name 'pool' already exists in the namespace n1",
    "FileExistsError: [Errno 17] File exists: '/out/run_3'",
    "OSError: [Errno 98] Address already in use",
    "OSError: [Errno 39] Directory not empty: '/out/a'",
    "filelock._error.Timeout: The file lock '/out/a.lock' could not be acquired.",
    "RuntimeError: trying to initialize the default process group twice!",
    "BlockingIOError: [Errno 11] unable to lock file, errno = 11",
]


@pytest.mark.parametrize("message", TAKEN)
@pytest.mark.parametrize("retry", [RAYLET, "Trial 1: lost. Restarting the worker\n", "The task 3 will be retried\n"])
def test_what_a_second_try_finds_taken_was_left_by_the_first(message: str, retry: str) -> None:
    error = f"{HEADER}{OWN}{message}\n"
    verdict = read("step 3 loss 2.0\n" + retry + "step 1 loss 3.0\n" + error)
    assert (verdict.category, verdict.confidence) == ("insufficient_evidence", "unknown")
    assert verdict.evidence[0].line == 2
    assert read(error + retry).category != "insufficient_evidence"
    assert read(retry + f"{HEADER}{OWN}KeyError: 3\n").category == "python_exception"
    assert read(f"{HEADER}{OWN}KeyError: 3\n" + retry + error).category == "python_exception"


@pytest.mark.parametrize("message", TAKEN)
def test_a_restart_that_finds_something_taken_leaves_the_first_attempt_to_blame(message: str) -> None:
    info = AGENT.replace("E0101", "I0101")
    first = raised(2, "torch.OutOfMemoryError: CUDA out of memory.") + failed(1, 2, 42) + info + AGAIN
    second = raised(0, message) + failed(1, 0, 50) + table((1, 0, 50))
    verdict = read(first + second)
    assert (verdict.category, verdict.rank) == ("cuda_oom", 2)
    assert read(second).rank == 0
    assert read(first + raised(0, "KeyError: 3") + failed(1, 0, 50) + table((1, 0, 50))).rank == 0


@pytest.mark.parametrize(
    ("words", "category"),
    [
        ('  what():  In connect at uv.h:9 "rv < 0: too many open files"', "too_many_open_files"),
        ("accept4: too many open files", "too_many_open_files"),
        ("write /data/a.bin: no space left on device", "disk_full"),
        ("  what():  fork: resource temporarily unavailable", "thread_limit"),
        ("  what():  mmap: cannot allocate memory", "host_memory_error"),
        ('  what():  In listen at uv.h:9 "rv < 0: address already in use"', "port_in_use"),
    ],
)
def test_a_limit_that_another_library_tells_in_lower_case(words: str, category: str) -> None:
    lost = "RuntimeError: EOF: end of file (this error originated at tensorpipe/transport/uv/connection_impl.cc:132)\n"
    verdict = read(f"terminate called after throwing an instance of 'std::runtime_error'\n{words}\n{HEADER}{OWN}{lost}")
    assert verdict.category == category
    assert read(HEADER + OWN + lost).category == "collateral_only"


def test_a_connection_that_was_refused_for_now_is_no_limit_on_threads() -> None:
    frame = '  File "/opt/lib/torch/multiprocessing/spawn.py", line 5, in _wrap\n'
    message = "connect: Resource temporarily unavailable (this error originated at tensorpipe/common/socket.cc:114)"
    assert read(f"{HEADER}{OWN}{frame}RuntimeError: {message}\n").category != "thread_limit"
    assert read(f"{HEADER}{OWN}{frame}OSError: Resource temporarily unavailable\n").category == "thread_limit"


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: bad sample 3 on rank 1",
        "RuntimeError: rank 1 had an error",
        "RuntimeError: [rank 1] no batch",
        "KeyError: 'no such field (rank 1)'",
        "AssertionError: empty batch at rank 1 in epoch 3",
    ],
)
def test_a_script_that_names_its_rank_in_the_message_signs_it(message: str) -> None:
    ctrl_c = f"^C{HEADER}{OWN}KeyboardInterrupt\n"
    verdict = read(f"{HEADER}{OWN}{message}\n{ctrl_c}")
    assert (verdict.category, verdict.rank, verdict.confidence) == ("python_exception", 1, "likely")
    assert read(raised(0, message)).rank == 0


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: checksum mismatch on rank 1",
        "RuntimeError: no heartbeat on rank 1",
        "RuntimeError: timed out waiting on rank 1",
        "RuntimeError: shard 3 missing on rank 1",
        "RuntimeError: expected 4 shards on rank 1",
        "ValueError: bad sample on local rank 1",
        "ValueError: rank 1 differs",
        "ValueError: rank 0 has more batches than rank 1",
        "ValueError: bad sample 3 of ranks 1 and 2",
    ],
)
def test_a_message_about_another_rank_names_nobody(message: str) -> None:
    assert read(f"{HEADER}{OWN}{message}\n").rank is None


def test_a_librarys_message_about_a_rank_names_nobody() -> None:
    frame = '  File "/opt/lib/python3.11/site-packages/x/y.py", line 5, in f\n'
    assert read(f"{HEADER}{OWN}{frame}ValueError: bad sample on rank 1\n").rank is None


@pytest.mark.parametrize(
    ("ends", "confidence"),
    [
        (failed(1, 2, 42) + table((1, 2, 42)), "confirmed"),
        (failed(-9, 2, 42) + table((-9, 2, 42)), "likely"),
        (failed(-11, 2, 42) + table((-11, 2, 42)), "likely"),
        (
            AGENT + "Sending process 42 closing signal SIGTERM\n" + failed(1, 1, 41) + table((-15, 2, 42), (1, 1, 41)),
            "likely",
        ),
    ],
)
def test_an_exception_whose_rank_ended_otherwise_is_less_sure(ends: str, confidence: str) -> None:
    verdict = read(raised(2, "KeyError: 3") + ends)
    assert (verdict.category, verdict.rank, verdict.confidence) == ("python_exception", 2, confidence)


def test_a_kernels_record_of_a_process_that_the_job_does_not_know_is_less_sure() -> None:
    kernel = "kernel: Out of memory: Killed process 977 (python3) total-vm:9kB\n"
    assert read(kernel).confidence == "confirmed"
    assert read(kernel, raised(2, "KeyError: 3")).confidence == "likely"
    killed = "RuntimeError: DataLoader worker (pid 51) is killed by signal: Killed. "
    assert read(kernel, raised(2, killed)).confidence == "confirmed"


def test_a_rank_that_lost_its_peer_and_crashed_while_it_ended_is_no_crash_of_its_own() -> None:
    lost = raised(3, "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [192.0.2.7]:1271")
    verdict = read(lost + failed(-11, 3, 43) + table((-11, 3, 43)))
    assert (verdict.category, verdict.rank) == ("collateral_only", None)
    assert read(lost + failed(-11, 1, 41) + table((-11, 1, 41))).category == "segfault"


def test_our_own_lines_are_no_evidence() -> None:
    ours = "[TraceML] error record: [Errno 24] Too many open files: '/logs/error.json' (training goes on)\n"
    verdict = read(ours + HEADER + OWN + "KeyError: 7\n" + failed(1, 0, 40))
    assert (verdict.category, verdict.rank) == ("python_exception", 0)
    assert read(ours).category != "too_many_open_files"


def test_bytes_that_are_no_text_are_no_damaged_file() -> None:
    text = "UnicodeDecodeError: 'utf-8' codec can't decode bytes in position 3-4: unexpected end of data\n"
    assert read(HEADER + OWN + text + failed(1, 0, 40)).category == "python_exception"


def test_a_restart_that_could_not_meet_again_is_no_cause() -> None:
    again = (
        "I0101 20:57:28.0 21000 torch/distributed/elastic/agent/server/api.py:800] [default] Worker group FAILED. 3/3 "
    )
    again += "attempts left; will restart worker group\n"
    frames = "".join(
        f'  File "/opt/torch/distributed/elastic/{place}\n    run()\n'
        for place in (
            'agent/server/api.py", line 889, in _restart_workers',
            'rendezvous/dynamic_rendezvous.py", line 1125, in next_rendezvous',
        )
    )
    closed = f"{HEADER}{frames}torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"
    verdict = read(raised(1, "ValueError: bad sample") + failed(1, 1, 41) + again + closed)
    assert (verdict.category, verdict.rank) == ("python_exception", 1)
