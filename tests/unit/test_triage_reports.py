"""Kinds of logs from public reports that once misled the triage: relayed, repeated, broken and foreign words."""

from __future__ import annotations

import pytest

from tests.unit.test_odd_replica import counts
from tests.unit.test_triage_care import table
from tests.unit.test_triage_kinds import AGENT, OUT_OF_MEMORY, failed, read
from tests.unit.test_triage_signatures import TRACE, prefixed, watchdog

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [192.0.2.7]:1271\n"
STOPPED = AGENT.replace("E0101", "W0101") + "Received 15 death signal, shutting down workers\n"
ONE_OF_TWO = "  local_ranks=[0]\n  global_ranks=[1]\n  global_world_sizes=[2]\n"


@pytest.mark.parametrize(
    ("again", "rank"),
    [
        ("Child process 71 (local_rank 1) FAILED (exitcode 1)\nError msg: Process failed with exitcode 1\n", 1),
        (f"{AGENT}torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 1\n", 1),
    ],
)
def test_a_failure_that_torchrun_tells_twice_is_no_second_attempt(again: str, rank: int) -> None:
    verdict = read(OUT_OF_MEMORY + failed(1, 1, 71) + again)
    assert (verdict.category, verdict.rank) == ("cuda_oom", rank)


def test_one_exit_told_with_and_without_its_process_is_one() -> None:
    told = f"{AGENT}torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 7\n"
    verdict = read(failed(7, 0, 902) + told + table((7, 0, 902)))
    assert (verdict.category, verdict.rank, verdict.exit_code) == ("nonzero_exit", 0, 7)


def test_an_exit_after_an_unsigned_loss_of_a_peer_is_not_the_first_failure() -> None:
    lost = f'DEBUG:errors:User process failed: {{\n  "message": "{LOST.strip()}"\n}}\n'
    assert (read(ONE_OF_TWO + TRACE + LOST + failed(1, 0, 13)).category) == "collateral_only"
    assert (read(ONE_OF_TWO + lost + failed(1, 0, 13)).category) == "collateral_only"
    assert read(ONE_OF_TWO + failed(1, 0, 13)).rank == 1


def test_a_stop_of_one_node_is_why_a_rank_of_another_lost_its_peer_and_aborted() -> None:
    lost = "Collective WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) raised the following async exception: "
    lost = watchdog(0, 50.6, f"{lost}NCCL error: remote process exited or there was a network error")
    died = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    assert read(lost + died + failed(-6, 0, 1316), STOPPED).category == "sigterm_unattributed"
    assert read(died + failed(-6, 0, 1316)).category == "abort"


def test_what_logging_could_not_write_is_no_error_of_the_job() -> None:
    unwritten = (
        f"--- Logging error ---\n{TRACE}OSError: [Errno 5] Input/output error\nMessage: 'Received 1'\nArguments: ()\n"
    )
    ended = f"{TRACE}torch.distributed.elastic.multiprocessing.api.SignalException: Process 31 got signal: 1\n"
    assert read(unwritten + ended).category == "hangup"


def test_an_error_of_who_started_the_launcher_says_nothing_new() -> None:
    wrapper = f"{TRACE}RuntimeError: 'accelerate-launch test.py' failed with returncode 1\n"
    assert read(failed(1, 1, 5) + table((1, 1, 5)) + wrapper).category == "insufficient_evidence"
    assert read(f"{TRACE}Exception: process 0 terminated with exit code 17\n").category == "nonzero_exit"


def test_a_crash_in_torchruns_own_code_is_not_a_workers() -> None:
    stack = '\nCurrent thread 0x01 (most recent call first):\n  File "{}", line 113 in _call_store\n'
    torchruns = stack.format("/e/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py")
    said = "srun: error: n1: task 2: Segmentation fault (core dumped)\n"
    assert read(f"Fatal Python error: Segmentation fault\n{torchruns}{said}").category == "agent_failure"
    assert read(f"Fatal Python error: Segmentation fault\n{stack.format('/w/train.py')}{said}").category == "segfault"
    old = '  File "/e/torchelastic/rendezvous/etcd_rendezvous.py", line 905, in __init__\n'
    assert read(f"{TRACE}{old}AttributeError: can't set attribute\n").category == "agent_failure"


def test_a_block_of_a_ranks_stream_is_that_ranks() -> None:
    block = "----------Begin global rank 1 STDERR----------\n"
    assert read(f"{block}{TRACE}FileExistsError: [Errno 17] File exists: '/b'\n").rank == 1


def test_a_broken_pipe_within_a_rank_is_what_its_thread_died_of() -> None:
    died = f"Exception in thread Thread-43 (accepter):\n{TRACE}RuntimeError: can't start new thread\n"
    broken = prefixed("[rank0]: ", f"{TRACE}EOFError\n")
    assert read(died + broken).category == "thread_limit"
    assert read(died + prefixed("[rank0]: ", f"{TRACE}KeyError: 'x'\n")).category == "python_exception"


def test_hosts_before_the_lines_of_ranks_tell_that_local_ranks_are_not_global_ones() -> None:
    nodes = "192.0.2.21: [rank0]: tried, error 4\n192.0.2.81: [rank19]: tried, error 4\n"
    nodes += prefixed("192.0.2.81: ", failed(-11, 3, 2283))
    assert (read(nodes).category, read(nodes).rank) == ("segfault", None)
    assert read(nodes.replace("192.0.2.81", "192.0.2.21").replace("rank19", "rank3")).rank == 3


def test_a_count_that_no_model_has_is_a_rank_that_did_something_else() -> None:
    ranks = {rank: counts(rank, 128, 0, 1506656875) for rank in (1, 2, 5)}
    log = "".join(prefixed(f"[rank{rank}]: ", f"{TRACE}{words}\n") for rank, words in ranks.items())
    assert (read(log).category, read(log).rank) == ("ddp_model_mismatch", None)
    assert read(log.replace("1506656875", "130")).rank == 0


def test_workers_whose_failures_are_told_as_events_make_a_tie() -> None:
    event = '{{"name": "torchelastic.worker.status.FAILED", "m": {{"global_rank": {}, "g": 0, "worker_id": "{}"}}}}\n'
    assert read(failed(1, 0, 100) + event.format(0, 100)).rank == 0
    assert read(failed(1, 0, 100) + event.format(0, 100) + event.format(1, 101)).rank is None


def test_a_driver_that_torch_warned_of_is_why_no_gpu_was_found() -> None:
    warned = "/e/torch/cuda/__init__.py:124: UserWarning: The NVIDIA driver on your system is too old\n"
    failure = f"{TRACE}AssertionError: Megatron requires CUDA.\n"
    assert read(warned + failure).category == "gpu_driver_mismatch"
    assert read(failure).category == "no_gpu"


def test_the_only_worker_of_deepspeed_is_rank_0() -> None:
    start = "[2026-01-01 10:00:00,460] [INFO] [launch.py:164:main] dist_world_size={}\n"
    ended = "[INFO] [launch.py:319:sigkill_handler] Killing subprocess 3107\n"
    ended += "[ERROR] [launch.py:325:sigkill_handler] ['python', '--local_rank={}'] exits with return code = 1\n"
    denied = f"{TRACE}PermissionError: [Errno 13] Permission denied: 'data/cache'\n"
    assert read(start.format(1) + denied + ended.format(0)).rank == 0
    assert read(start.format(2) + denied + ended.format(1)).rank is None


@pytest.mark.parametrize("code", [1, 17])
def test_a_spawned_process_that_left_without_an_exception_chose_its_code(code: int) -> None:
    spawned = f"{TRACE}torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code {code}\n"
    assert (read(spawned).category, read(spawned).rank) == ("nonzero_exit", 0)


def test_ranks_whose_ends_composer_tells() -> None:
    told = (
        "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\nGlobal rank 0 (PID 2051) exited with code -15\n"
    )
    assert (read(told).category, read(told).rank) == ("bus_error_shm", 2)
    both = told + "Global rank 1 (PID 2052) exited with code -7\nGlobal rank 2 (PID 2053) exited with code -7\n"
    assert read(both).rank is None


def test_a_scripts_own_word_on_a_nan_is_of_the_only_rank_that_failed() -> None:
    said = "Loss is nan, stopping training\n" + failed(1, 3, 55)
    sole = table((1, 3, 55)).replace("Failures:\n", "Failures:\n  <NO_OTHER_FAILURES>\n")
    assert (read(said + sole).category, read(said + sole).rank) == ("numerical_failure", 3)
    assert read(said + table((1, 1, 54), (1, 3, 55))).rank is None


def test_who_interrupts_torchrun_while_it_waits_is_no_failure_of_torchrun() -> None:
    frame = '  File "/e/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py", line 55, in next_rendezvous\n'
    assert read(f"Traceback (most recent call last):\n{frame}KeyboardInterrupt\n").category == "interrupted"


def test_a_library_that_another_rank_was_to_build_is_missing_because_that_build_failed() -> None:
    missing = "ImportError: /c/torch_extensions/py311/fused_adam/fused_adam.so: cannot open shared object file\n"
    built = prefixed("[rank1]: ", f"{TRACE}RuntimeError: Error building extension 'fused_adam'\n")
    log = prefixed("[rank0]: ", f"{TRACE}{missing}") + built + failed(1, 0, 70)
    assert (read(log).category, read(log).rank) == ("compile_error", 1)


def test_a_rank_that_alone_is_shown_need_not_be_the_first_of_those_that_failed_together() -> None:
    shown = prefixed("[rank0]: ", f"{TRACE}KeyError: 'x'\n")
    ended = failed(1, 0, 70) + table((1, 1, 71), (1, 2, 72), (1, 0, 70))
    assert read(shown + ended).rank is None
    assert read("[rank1]: error\n[rank2]: error\n" + shown + ended).rank == 0


@pytest.mark.parametrize("count", [0, 130])
def test_of_two_replicas_that_differ_the_one_that_says_so_may_be_either(count: int) -> None:
    log = f"{TRACE}RuntimeError: {counts(0, 128, 1, count)}\n" + failed(1, 0, 70)
    assert (read(log).category, read(log).rank) == ("ddp_model_mismatch", None)


def test_what_ended_a_thread_is_why_its_rank_missed_it() -> None:
    died = f"Exception in thread Thread-3:\n{TRACE}RuntimeError: received 0 items of ancdata\n"
    missed = f"{TRACE}RuntimeError: Pin memory thread exited unexpectedly\n"
    assert read(died + missed + failed(1, 1, 9)).category == "too_many_open_files"
    assert read(missed + failed(1, 1, 9)).category == "dataloader_worker_killed"


def test_ranks_whose_ends_horovod_tells() -> None:
    told = (
        "Process 0 exit with status code 137.\nTerminating remaining workers.\nProcess 1 exit with status code 143.\n"
    )
    wrapper = f"{TRACE}RuntimeError: Horovod detected that one or more processes exited with non-zero status\n"
    name = "Process name: 0\nExit code: 137\n"
    assert (read(told + wrapper + name).category, read(told + wrapper + name).rank) == ("sigkill_unattributed", 0)


def test_what_a_library_warns_of_below_an_exception_is_no_part_of_it() -> None:
    raised = f"{TRACE}subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 1.\n"
    again = "[INFO] api: [default] Worker group FAILED. 0/1 attempts left; will restart worker group\n"
    warned = "w-0:70:70 [0] init.cc:981 NCCL WARN Invalid rank requested : 1/1\n"
    assert read(raised + again + warned + "RuntimeError: NCCL error in: x.cpp:514, invalid argument\n").category == (
        "wrong_world_size"
    )


def test_a_thread_that_failed_before_a_rank_was_killed_is_not_why() -> None:
    died = f"Exception in thread Thread-1:\n{TRACE}KeyError: 'dashboard'\n"
    assert (read(died + failed(-9, 0, 7)).category, read(died + failed(-9, 0, 7)).rank) == ("sigkill_unattributed", 0)
    assert read(died + failed(1, 0, 7)).category == "python_exception"


def test_an_exit_code_that_python_does_not_give_makes_a_printed_exception_less_sure() -> None:
    printed = f"{TRACE}FileNotFoundError: [Errno 2] No such file or directory: '/x'\n"
    assert read(printed + failed(3, 0, 7)).confidence == "likely"
    assert read(printed + failed(1, 0, 7)).confidence == "confirmed"


def test_what_was_tried_again_is_not_what_failed() -> None:
    tried = "[W] CUDA out of memory. Tried to allocate 2.00 GiB; retrying with batch size 8\n"
    assert read(tried + prefixed("[rank3]: ", f"{TRACE}KeyError: 'x'\n")).category == "python_exception"


def test_words_of_one_category_in_an_error_of_another() -> None:
    assert read(f"{TRACE}ValueError: not enough values to unpack (expected 2, got 0)\n").category == "python_exception"
    loader = f"{TRACE}RuntimeError: DataLoader worker (pid 7) is killed by signal: Aborted.\n"
    assert read(f"LLVM ERROR: pthread_join failed\n{loader}").category == "dataloader_worker_killed"
    assert read("LLVM ERROR: out of memory\n").category == "compile_error"
    lost = "RuntimeError: ECONNRESET: connection reset by peer (this error originated at tensorpipe/transport/uv)\n"
    assert read(TRACE + lost).category == "collateral_only"
    closed = "I0825 15:47:40.208000 3120 api.py:745] Rendezvous gracefully exited: The rendezvous '4' is closed\n"
    frame = '  File "/e/torch/distributed/run.py", line 9, in run\n'
    broken = (
        f"Traceback (most recent call last):\n{frame}AttributeError: 'NoneType' object has no attribute 'is_failed'\n"
    )
    assert read(closed + broken).category == "agent_failure"


@pytest.mark.parametrize(
    "end", ["torchrun finished, status 0\n", "[1]+  Done                    nohup torchrun --nproc_per_node=2 t.py\n"]
)
def test_a_monitor_that_died_in_a_run_that_ended_well(end: str) -> None:
    died = f"epoch 58 loss 2\nException in thread SystemMonitor:\n{TRACE}AttributeError: no name\n"
    steps = "epoch 59 loss 2\nepoch 60 loss 1\nepoch 61 loss 1\n"
    assert read(died + steps + end).category == "ok"
    assert read(died + steps).category != "ok"


def test_a_toolkit_that_names_training_has_not_trained() -> None:
    assert read("2023-02-22 18:40:33 sagemaker-training-toolkit INFO 2 looking for status file\n").category != "ok"
