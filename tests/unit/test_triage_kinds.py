"""Kinds of logs that once misled the triage, each in a few lines."""

from __future__ import annotations

import pytest

from traceml_daemon.commands.diagnosing import build_report
from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.reader import LogReader
from traceml_daemon.triage.verdict import Verdict

AGENT = "E0101 20:57:27.620000 21000 torch/distributed/elastic/multiprocessing/api.py:869] "
OUT_OF_MEMORY = """\
Traceback (most recent call last):
  File "/data/job/train.py", line 7, in step
    model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


def read(*logs: str) -> Verdict:
    seen = Observations()
    for file, log in enumerate(logs):
        reader = LogReader(file, load_book(), seen)
        reader.feed(log.encode())
        reader.finish()
    return judge(seen)


def failed(code: int, local_rank: int, pid: int) -> str:
    return f"{AGENT}failed (exitcode: {code}) local_rank: {local_rank} (pid: {pid}) of binary: /opt/env/bin/python\n"


@pytest.mark.parametrize(
    ("log", "category", "rank"),
    [
        ("kernel: Out of memory: Killed process 5002 (python)\n" + failed(-9, 3, 5002), "host_oom_kill", 3),
        ("kernel: Memory cgroup out of memory: Killed process 77 (python)\n" + failed(-9, 2, 12), "host_oom_kill", 2),
        ("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=5001, GPU has fallen off the bus.\n" + failed(1, 1, 5001),
         "gpu_hardware", 1),
        ("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=9, GPU has fallen off the bus.\n"
         "[rank6]: RuntimeError: CUDA error: unspecified launch failure\n", "gpu_hardware", 6),
        ("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=9, GPU has fallen off the bus.\n"
         "[rank6]: RuntimeError: CUDA error: unspecified launch failure\n"
         "[rank7]: RuntimeError: CUDA error: unspecified launch failure\n", "gpu_hardware", None),
        ("Indexing.cu:1553: indexSelect: block: [3,0,0], thread: [0,0,0] Assertion `srcIndex < n` failed.\n"
         "[rank2]: torch.AcceleratorError: CUDA error: device-side assert triggered\n", "cuda_device_assert", 2),
        ("node-a:9001:9120 [4] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'\n" + failed(1, 4, 9001),
         "cuda_oom", 4),
    ],
)  # fmt: skip
def test_a_line_that_nobody_signed_belongs_to_the_process_it_names_or_that_failed_of_it(
    log: str, category: str, rank: int | None
) -> None:
    verdict = read(log)
    assert (verdict.category, verdict.rank) == (category, rank)


def test_code_that_a_traceback_quotes_is_no_evidence() -> None:
    log = """\
Traceback (most recent call last):
  File "run.py", line 155, in <module>
    raise RuntimeError('Error(s) in loading state_dict for {}: CUDA out of memory'.format(name))
ValueError: no such label
"""
    verdict = read(log)
    assert verdict.category == "python_exception"
    assert [place.line for place in verdict.evidence] == [4]


@pytest.mark.parametrize(
    "log",
    [
        OUT_OF_MEMORY + "out of memory at 64, halving\nstep 1 loss 2.0\nTraining complete.\n",
        OUT_OF_MEMORY + "all ranks done, exit code 0\n",
        failed(1, 1, 5001) + f"{AGENT}[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
        "step 900 loss 0.1\nTraining finished after 900 steps\n",
        OUT_OF_MEMORY + failed(1, 1, 5001) + f"{AGENT}[default] Rendezvous'ing worker group\nstep 5 loss 1\n"
        f"{AGENT}[default] worker group successfully finished. Waiting 300 seconds for other agents to finish.\n",
        "trial 1 failed: torch.OutOfMemoryError: CUDA out of memory.\nstep 20 loss 0.9\nAll trials finished\n",
        "error_rate: 0.12\n{'train_runtime': 812.1, 'train_loss': 1.1, 'epoch': 1.0}\n",
        "WARNING Failed to import flash_attn, falling back\nstep 30 loss 2.9\nTraining complete. total errors: 0\n",
    ],
)
def test_what_the_job_survived_is_no_failure(log: str) -> None:
    assert read(log).category == "ok"


@pytest.mark.parametrize(
    "log",
    [
        OUT_OF_MEMORY + "Job finished at Mon Nov 30 02:37:13\n",
        "step 1 loss 2.0\n" + OUT_OF_MEMORY + "done\n",
        OUT_OF_MEMORY + "step 1 loss 2.0\nTraining was not completed\n",
        OUT_OF_MEMORY + failed(1, 1, 5001) + "step 9 loss 1\nexit 0\n",
    ],
)
def test_what_a_batch_script_says_at_its_end_does_not_undo_a_failure(log: str) -> None:
    assert read(log).category == "cuda_oom"


@pytest.mark.parametrize(
    ("logs", "category", "rank"),
    [
        (("[WARNING] [RankMonitorServer:5] Did not get subsequent heartbeat. Waited 300.00 seconds.\n",), "hang", 5),
        (
            ("watchdog: no log output from any replica for 3600 s\nReceived 15 death signal, shutting down\n",),
            "hang",
            None,
        ),
        (('"ExitCode": 137,\n"OOMKilled": false,\n',), "sigkill_unattributed", None),
        (('"ExitCode": 137,\n"OOMKilled": true,\n',), "host_oom_kill", None),
        (('docker: could not select device driver "" with capabilities: [[gpu]].\n',), "no_gpu", None),
        (
            (
                "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete\n",
                "slurmstepd: error: *** STEP 9001.0 ON node-a CANCELLED AT 2024-05-20T14:19:31 ***\n",
            ),
            "collective_timeout",
            None,
        ),
    ],
)
def test_what_supervisors_and_containers_record(logs: tuple[str, ...], category: str, rank: int | None) -> None:
    verdict = read(*logs)
    assert (verdict.category, verdict.rank) == (category, rank)


def test_a_carriage_return_inside_a_line_leaves_the_number_of_later_lines_open() -> None:
    early = build_report(read(OUT_OF_MEMORY + " 5%|\r 6%|\n"), ["a.log"])
    assert [item.line for item in early.evidence] == [4]
    late = build_report(read("step 1\r\n 5%|\r 6%|\n" + OUT_OF_MEMORY), ["a.log"])
    assert [(item.line, item.place) for item in late.evidence] == [(None, "a.log")]


@pytest.mark.parametrize(
    "prefix",
    [
        "     {n}\t",
        "Mar 04 05:06:07 node-a train[4242]: ",
        "2025-03-04 05:06:07,123 - INFO - ",
        "2025-03-04 05:06:07,123 - job.runner - INFO - ",
        "2025-03-04 05:06:07.123 | INFO     | job:run:12 - ",
        "worker-1: ",
        "192.0.2.7: ",
    ],
)
def test_what_others_put_before_each_line_changes_nothing(prefix: str) -> None:
    log = OUT_OF_MEMORY + failed(1, 3, 5001)
    prefixed = "".join(prefix.format(n=n) + line for n, line in enumerate(log.splitlines(keepends=True), 1))
    verdict = read(prefixed)
    assert (verdict.category, verdict.rank) == ("cuda_oom", 3)


def test_a_line_of_dockers_own_log_is_read_as_what_the_container_wrote() -> None:
    lines = (OUT_OF_MEMORY.replace('"', '\\"') + failed(1, 3, 5001)).splitlines()
    log = "".join(f'{{"log":"{line}\\n","stream":"stderr","time":"2025-03-04T05:06:07Z"}}\n' for line in lines)
    verdict = read(log)
    assert (verdict.category, verdict.rank) == ("cuda_oom", 3)
    assert all(place.quote in log.splitlines()[place.line - 1] for place in verdict.evidence)


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp", "collateral_only"),
        ("torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clien", "rendezvous_failed"),
        ("botocore.exceptions.ClientError: An error occurred (403) when calling the HeadObject operation: Forbidden",
         "hub_access"),
        ("botocore.exceptions.NoCredentialsError: Unable to locate credentials", "hub_access"),
    ],
)  # fmt: skip
def test_a_message_that_was_cut_or_wrapped_is_no_exception_of_the_users_code(message: str, category: str) -> None:
    log = f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 3, in f\n[rank0]: {message}\n'
    assert read(log).category == category


def test_an_error_of_files_that_torchrun_meets_is_no_failure_of_torchrun() -> None:
    log = """\
Traceback (most recent call last):
  File "/opt/env/lib/python3.10/site-packages/torch/distributed/run.py", line 919, in main
    run(args)
  File "/opt/env/lib/python3.10/site-packages/torch/distributed/elastic/multiprocessing/api.py", line 660, in _start
    self.subprocess_handlers = {
PermissionError: [Errno 13] Permission denied: './launch.sh'
"""
    assert read(log).category == "permission_denied"
    assert read(log.replace("PermissionError: [Errno 13] Permission denied", "AttributeError: x")).category == (
        "agent_failure"
    )


@pytest.mark.parametrize(
    ("log", "category", "rank"),
    [
        ("(WorkerDict pid=4121) Fatal Python error: Segmentation fault\n"
         "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n", "segfault", None),
        ("ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
         "There are some potential root causes. (1) killed by SIGKILL by OOM killer. (3) crashed due to SIGSEGV.\n",
         "insufficient_evidence", None),
        ("torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving an id from [0], "
         "but store->get('0') got error: wait timeout after 600000ms\n", "rendezvous_failed", None),
        ("kernel: Out of memory: Killed process 5521 (pt_data_worker)\n"
         "[rank2]: RuntimeError: DataLoader worker (pid 5521) is killed by signal: Killed.\n", "host_oom_kill", 2),
        ("kernel: Out of memory: Killed process 99 (browser)\n[rank1]: ValueError: bad\n" + failed(1, 1, 5001),
         "python_exception", 1),
        ("container train exited with code 143\n", "sigterm_unattributed", None),
        ("[Rank 3] Traceback (most recent call last):\n[Rank 3]   File \"a.py\", line 3\n[Rank 3] ValueError: x\n",
         "python_exception", 3),
        ("[1]<stderr>:Traceback (most recent call last):\n[1]<stderr>:  File \"a.py\", line 3\n"
         "[1]<stderr>:ValueError: x\n",
         "python_exception", 1),
        ("kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
         "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited\n"
         + failed(1, 0, 801), "gpu_hardware", None),
        ("INFO job stalled? checking\n[rank1]: ValueError: bad\n" + failed(1, 1, 5001), "python_exception", 1),
        ("step 100 loss 1\nSending process 801 closing signal SIGTERM\n", "insufficient_evidence", None),
        ("[rank0]: OSError: [Errno 28] No space left on device, attempt 1 of 3\n[rank1]: ValueError: bad\n",
         "python_exception", 1),
        ("sample: 'Segmentation fault (core dumped) means that'\n" + failed(-9, 1, 5001), "sigkill_unattributed", 1),
        ("  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: in a group (1 sub-exception)\n"
         "    | Traceback (most recent call last):\n    |   File \"a.py\", line 3, in f\n    | ValueError: bad\n",
         "python_exception", None),
    ],
)  # fmt: skip
def test_what_wraps_or_names_a_cause_is_not_the_cause(log: str, category: str, rank: int | None) -> None:
    verdict = read(log)
    assert (verdict.category, verdict.rank) == (category, rank)


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ("AssertionError: grad norm is inf", "numerical_failure"),
        ("ValueError: The state dict to load is missing the following keys: a", "checkpoint_mismatch"),
        ("lzma.LZMAError: Corrupt input data", "corrupted_file"),
        ("av.error.InvalidDataError: Invalid data found when processing input: 'a.mp4'", "corrupted_file"),
        ("AssertionError: sequence parallelism requires tensor parallelism", "config_error"),
        ("AssertionError: tensor 2 * pipeline 4 must divide world size 6", "wrong_world_size"),
        ("yaml.scanner.ScannerError: mapping values are not allowed here", "config_error"),
        ("RuntimeError: CUDA driver error: out of memory", "cuda_oom"),
        ("AssertionError: the norm layer is missing", "python_exception"),
        ("ValueError: the worlds must divide by two", "python_exception"),
    ],
)
def test_words_of_one_kind(message: str, category: str) -> None:
    verdict = read(f"{OUT_OF_MEMORY.rpartition('torch.Out')[0]}{message}\n{failed(1, 2, 5001)}")
    assert (verdict.category, verdict.rank) == (category, 2)


def test_line_ends_of_a_terminal_do_not_tear_a_table_apart() -> None:
    log = (
        f"[default5]:{OUT_OF_MEMORY.splitlines()[-1]}\n{failed(1, 5, 5001)}Root Cause (first observed failure):\n[0]:\n"
        "  time      : 2025-02-11_09:41:12\n  rank      : 13 (local_rank: 5)\n  exitcode  : 1 (pid: 5001)\n"
    )
    assert read(log).rank == 13
    assert read(log.replace("\n", "\r\n")) == read(log)
