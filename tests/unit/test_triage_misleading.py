"""Logs whose loudest line is not the reason: a later Ctrl-C, a kill that cleans up, a library's own wrapper."""

from __future__ import annotations

import pytest

from tests.unit.test_triage_care import table
from tests.unit.test_triage_kinds import failed, read
from tests.unit.test_triage_rules import HEADER, raised

DOG = (
    "[rank{n}]:[E101 10:00:00.5 ProcessGroupNCCL.cpp:632] [Rank {n}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=1000) ran for 1001 milliseconds before timing out.\n"
)
DOGS = DOG.format(n=0) + DOG.format(n=1)


@pytest.mark.parametrize(
    "ended",
    [
        "[rank: 1] Child process with PID 41 terminated with code -6. Terminating all other processes.\n",
        failed(-6, 1, 41),
        "srun: error: n1: task 1: Aborted (core dumped)\n",
        "srun: error: n1: task 1: Exited with exit code 1\n",
    ],
)
@pytest.mark.parametrize(
    "kill", ["./fit.sh: line 3: 40 Killed  python fit.py\n", "srun: error: n1: task 0: Killed\n", "Killed\n"]
)
def test_a_kill_told_after_another_workers_end_is_what_the_launcher_did_then(ended: str, kill: str) -> None:
    assert read(DOGS + ended + kill).category == "collective_timeout"
    assert read(DOGS + kill + ended).category == "sigkill_unattributed"
    assert read(kill).category == "sigkill_unattributed"
    lost = raised(1, "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited")
    assert read(lost + ended + kill).category != "insufficient_evidence"


WAITED = (
    '  File "/opt/lib/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py", line 7, in next_rendezvous\n'
    '  File "/opt/lib/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py", line 9, in _keep_alive\n'
)
INIT = '  File "/opt/lib/torch/distributed/rendezvous.py", line 5, in _create_c10d_store\n'
TRAINED = '  File "/app/train.py", line 5, in step\n'
CTRL_C = "KeyboardInterrupt\n"
SIGNALED = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 40 got signal: {}\n"
NOT_MET = (
    f'{HEADER}  File "/opt/lib/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py", line 4, in '
    "_create_tcp_store\n"
)
LOST = (
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n"
)
CHAINED = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize("frames", [WAITED, INIT])
@pytest.mark.parametrize("stop", [CTRL_C, SIGNALED.format(2), SIGNALED.format(15), SIGNALED.format(1)])
@pytest.mark.parametrize(
    "other",
    [
        f"{NOT_MET}RuntimeError: connect() timed out.\n{CHAINED}{NOT_MET}{LOST}",
        f"{NOT_MET}torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to "
        f"connect to (n1, 29500).\n{CHAINED}{NOT_MET}{LOST}",
        f"{HEADER}{INIT}torch.distributed.DistStoreError: Timed out after 31 seconds waiting for clients. 1/2 clients "
        "joined.\n",
        f"{HEADER}{INIT}torch.distributed.DistNetworkError: failed to resolve n1: Name or service not known\n",
    ],
)
def test_who_was_stopped_while_it_waited_for_a_node_that_could_not_come_is_not_the_reason(
    frames: str, stop: str, other: str
) -> None:
    for verdict in (
        read(HEADER + frames + stop, other),
        read(other, HEADER + frames + stop),
        read(other + HEADER + frames + stop),
    ):
        assert verdict.category == "rendezvous_failed"
    assert read(HEADER + TRAINED + stop, other).category != "rendezvous_failed"
    assert read(HEADER + frames + stop).category != "rendezvous_failed"


@pytest.mark.parametrize(
    "inner",
    ["RuntimeError: Connection reset by peer", "RuntimeError: Broken pipe", "ConnectionError: socket was closed"],
)
def test_a_node_that_lost_the_store_of_the_one_that_was_stopped_is_a_victim(inner: str) -> None:
    stopped = HEADER + WAITED + CTRL_C
    assert read(stopped, f"{NOT_MET}{inner}\n{CHAINED}{NOT_MET}{LOST}").category == "interrupted"
    closed = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"
    assert read(stopped, HEADER + WAITED + closed).category == "interrupted"


@pytest.mark.parametrize(
    "message",
    [
        "num_heads (12) must be divisible by mp_size (8)",
        "Total number of attention heads (28) must be divisible by tensor parallel size (8).",
        "num_experts=6 must be divisible by ep_size=4",
        "attention heads 12 is not divisible by tensor_model_parallel_size 8",
        "number of layers (30) should be divisible by the pipeline-model-parallel size (4)",
        "num_attention_heads must be divisible by `tp`",
        "sequence length 1000 is not divisible by sequence parallel size 3",
        "hidden size 770 must be a multiple of tensor_parallel_size 4",
        "num_heads 10 is not divisible by sp_world_size 4",
        "20 heads cannot be split evenly across 8 GPUs",
        "num_key_value_heads (2) must be divisible by tp world size (8)",
        "heads must be divisible by ulysses_sequence_parallel_size",
        "layers must be divisible by self.pp_size",
    ],
)
def test_what_cannot_be_split_over_so_many_ranks_is_a_wrong_number_of_ranks(message: str) -> None:
    assert read(f"{HEADER}{TRAINED}AssertionError: {message}\n").category == "wrong_world_size"


@pytest.mark.parametrize(
    "message",
    [
        "embed_dim must be divisible by num_heads (got embed_dim: 100 and num_heads: 8)",
        "image size must be divisible by patch size",
        "sequence length must be divisible by 64",
        "width must be a multiple of 8",
        "channels (30) must be divisible by num_groups",
    ],
)
def test_what_cannot_be_split_within_a_rank_is_no_matter_of_their_number(message: str) -> None:
    assert read(f"{HEADER}{TRAINED}ValueError: {message}\n").category != "wrong_world_size"


@pytest.mark.parametrize(
    "warning",
    [
        "init.cc:12 NCCL WARN Mismatched collective detected, look at the calls around rank 3.",
        "misc.cc:12 NCCL WARN Mismatched Collective detected",
        "net_ib.cc:10 NCCL WARN NET/IB : req 0/1 tag 0 peer n2<586> collective mismatch error, local size 9",
        "net_socket.cc:4 NCCL WARN NET/Socket : peer n2<586> message truncated : receiving 9 bytes instead of 6.",
        "net.cc:4 NCCL WARN NET/Socket : message truncated : receiving 1048576 bytes instead of 65536",
    ],
)
@pytest.mark.parametrize("kind", ["invalid usage", "internal error", "unhandled system error"])
def test_what_nccl_saw_differ_beats_the_kind_that_it_returns(warning: str, kind: str) -> None:
    error = f"{HEADER}{TRAINED}RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:4, {kind}, NCCL version 2.4.8\n"
    verdict = read(f"n1:40:41 [3] {warning}\nn0:30:31 [0] {warning}\n{error}{error}")
    assert (verdict.category, verdict.rank) == ("collective_mismatch", None)


@pytest.mark.parametrize("kind", ["invalid usage", "internal error", "invalid argument"])
@pytest.mark.parametrize("type_name", ["RuntimeError", "torch.distributed.DistBackendError"])
def test_an_error_of_nccl_is_no_exception_of_the_script(type_name: str, kind: str) -> None:
    error = f"{HEADER}{TRAINED}{type_name}: NCCL error in: ProcessGroupNCCL.cpp:4, {kind}, NCCL version 2.4.8\n"
    warning = "n1:43:99 [3] NCCL WARN Bootstrap : no socket interface found\n"
    for log in (error, warning + error):
        assert read(log).category == "nccl_system_error"


FULL_SHM = "Error while creating shared memory segment /dev/shm/nccl-0pY (size 96), error: No space left on device (28)"


def filed(rank: int, *message: str) -> str:
    """One entry of torchrun's table, with the traceback of the rank's error file."""
    return (
        f"[{rank}]:\n  time      : 2026-01-01_10:00:00\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : 1 (pid: {40 + rank})\n  error_file: /tmp/e/attempt_0/{rank}/error.json\n"
        '  traceback : Traceback (most recent call last):\n    File "/app/train.py", line 4, in step\n      f()\n'
        + "".join(f"  {line}\n" for line in message)
    )


@pytest.mark.parametrize(
    ("message", "category"),
    [
        (("torch.distributed.DistBackendError: NCCL error in: x.cpp:9, unhandled system error, NCCL version 2.27.5",
          "ncclSystemError: System call failed.", "Last error:", FULL_SHM), "bus_error_shm"),
        (("torch.distributed.DistBackendError: NCCL error in: x.cpp:9, unhandled cuda error", "Last error:",
          "Cuda failure 2 'out of memory'"), "cuda_oom"),
        (("RuntimeError: Error(s) in loading state_dict for Net:",
          "\tsize mismatch for w: copying a param with shape torch.Size([3])"), "checkpoint_mismatch"),
        (("RuntimeError: CUDA error: an illegal memory access was encountered", "Compile with x"),
         "cuda_illegal_access"),
        (("RuntimeError: NCCL communicator was aborted", "",
          "During handling of the above exception, another exception occurred:", "",
          "Traceback (most recent call last):", '  File "/app/train.py", line 9, in save',
          "OSError: [Errno 28] No space left on device: '/data/a.pt'"), "disk_full"),
    ],
)  # fmt: skip
def test_the_whole_message_of_an_error_file_tells(message: tuple[str, ...], category: str) -> None:
    rule = "-" * 60 + "\n"
    one = read(
        f"Failures:\n  <NO_OTHER_FAILURES>\n{rule}Root Cause (first observed failure):\n{filed(1, *message)}{rule}"
    )
    assert (one.category, one.rank) == (category, 1)
    two = read(
        f"Failures:\n{filed(2, *message)}{rule}Root Cause (first observed failure):\n{filed(1, *message)}{'=' * 60}\n"
    )
    assert (two.category, two.rank) == (category, None)


@pytest.mark.parametrize(
    "start",
    [
        "[host n1] rank {rank} local_rank 5 pid {pid}",
        "rank={rank} pid={pid} host=n1",
        "pid {pid}: global rank {rank} of 4, local rank 0",
        "Rank {rank} (PID: {pid}) ready",
        "[Rank {rank}] [PID {pid}] step {pid} loss 0.5",
        "INFO worker started: pid={pid}, rank={rank}, local_rank=1",
        "n1:{pid}:977 [1] NCCL INFO comm 0x7f00 rank {rank} nranks 4 cudaDev 1 nvmlDev 1 - Init COMPLETE",
        "[INFO] [launch.py:2:main] process {pid} spawned with command: ['python', '-u', 'a.py', '--local_rank={rank}']",
    ],
)
def test_a_kernels_record_names_a_process_whose_rank_a_start_line_told(start: str) -> None:
    starts = "".join(start.format(rank=rank, pid=5000 + rank) + "\n" for rank in range(4))
    kill = "Memory cgroup out of memory: Killed process {} (python) total-vm:9kB\n"
    for log in ((starts + CTRL_C, kill.format(5002)), (kill.format(5002) + starts,)):
        verdict = read(*log)
        assert (verdict.category, verdict.rank) == ("host_oom_kill", 2)
    assert read(starts, kill.format(977)).rank is None
    again = start.format(rank=3, pid=5002) + "\n"
    assert read(starts + again, kill.format(5002)).rank is None


@pytest.mark.parametrize(
    "start",
    [
        "local rank 2 pid 5002",
        "node rank 2, pid 5002",
        "n1:5002:977 [1] NCCL INFO comm 0x7f00 rank 2 nranks 3 cudaDev 1 nvmlDev 1 - Init COMPLETE\n"
        "n1:5002:977 [1] NCCL INFO comm 0x7f01 rank 1 nranks 4 cudaDev 1 nvmlDev 1 - Init COMPLETE",
    ],
)
def test_a_number_on_a_node_or_in_a_smaller_group_is_not_the_rank(start: str) -> None:
    kill = "Memory cgroup out of memory: Killed process 5002 (python) total-vm:9kB\n"
    assert read(start + "\n", kill).rank != 2


SPAWNED = "n1: [INFO] process {pid} spawned with command: ['python', 'a.py', '--local_rank={rank}', '--x']\n"


@pytest.mark.parametrize(
    ("starts", "rank"),
    [
        (SPAWNED.format(pid=5002, rank=0), 0),
        ("dist_world_size=4\n" + SPAWNED.format(pid=5002, rank=0), None),
        (SPAWNED.format(pid=5002, rank=0) + SPAWNED.format(pid=5007, rank=0), None),
        (SPAWNED.format(pid=5002, rank=0) + "rank 4 pid 5002\n", 4),
        ("[PID:5002] [RANK:1] a\n[PID:6002] [RANK:1] a\n", 1),
        ("node-1: [rank1]: Error\nnode-2: [rank9]: Error\n[PID:5002] [RANK:1] a\n[PID:6002] [RANK:1] a\n", None),
    ],
)
def test_ranks_of_a_node_name_nobody_where_there_are_several_nodes(starts: str, rank: int | None) -> None:
    kill = "Memory cgroup out of memory: Killed process 5002 (python) total-vm:9kB\n"
    verdict = read(starts, kill)
    assert (verdict.category, verdict.rank) == ("host_oom_kill", rank)


XID = "kernel: NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    "message",
    ["RuntimeError: CUDA error: unspecified launch failure", "ValueError: bad sample 17", "KeyError: 'loss'"],
)
@pytest.mark.parametrize(
    "label", ["Unhandled exception <class 'X'> in proc 21, global rank 2, local rank 2.", "rank 2: training failed:"]
)
def test_an_exception_that_is_printed_before_its_traceback_is_one(message: str, label: str) -> None:
    log = f"step 7\n{message}\nModule call stack:\n(root)\n{label}\n{HEADER}{TRAINED}{message}\n"
    assert read(log).rank == 2
    if "launch failure" in message:
        verdict = read(XID, log)
        assert (verdict.category, verdict.rank) == ("gpu_hardware", 2)
    other = f"{HEADER}{TRAINED}{message}\n"
    assert read(other + log).rank is None
    assert read(raised(1, message) + log).rank is None
    assert read(log + table((1, 1, 41), (1, 2, 42))).rank is None


@pytest.mark.parametrize(
    "reason",
    [
        "NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument",
        "NET/IB : Unable to register memory region",
        "Call to ibv_reg_mr failed with error Cannot allocate memory",
        "Call to ibv_reg_mr_iova2 failed with error Invalid argument errno 22",
        "Call to ibv_create_cq failed",
    ],
)
def test_a_resource_that_a_rank_did_not_get_of_its_own_node_is_that_ranks(reason: str) -> None:
    error = (
        f"{HEADER}{TRAINED}torch.distributed.DistBackendError: NCCL error in: x.cpp:9, unhandled system error, NCCL "
        f"version 2.19.3\nncclSystemError: System call failed.\nLast error:\n{reason}\n"
    )
    sole = table((1, 3, 43)).replace("Failures:\n", "Failures:\n  <NO_OTHER_FAILURES>\n")
    verdict = read(error + failed(1, 3, 43) + sole)
    assert (verdict.category, verdict.rank) == ("nccl_system_error", 3)
    assert read(error + error + table((1, 2, 42), (1, 3, 43))).rank is None
    lost = "NET/OFI Request completed with error. RC: 110, Error: Unreachable remote"
    assert read(error.replace(reason, lost) + failed(1, 3, 43) + sole).rank is None
