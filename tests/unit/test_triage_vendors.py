"""Other devices than CUDA's, and other launchers than torchrun: the same causes in other words."""

from __future__ import annotations

import pytest

from tests.unit.test_triage_care import table
from tests.unit.test_triage_kinds import failed, read
from tests.unit.test_triage_rules import HEADER, raised


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ("RuntimeError: No HIP GPUs are available", "no_gpu"),
        ("RuntimeError: No XPU devices are available.", "no_gpu"),
        ("AssertionError: Torch not compiled with XPU enabled", "no_gpu"),
        ("RuntimeError: HIP error: no ROCm-capable device is detected", "no_gpu"),
        ("RuntimeError: HIP error: invalid device ordinal", "invalid_device_ordinal"),
        ("RuntimeError: The device index is out of range. It must be in [0, 2), but got 3.", "invalid_device_ordinal"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB.", "cuda_oom"),
        ("RuntimeError: HIP error: out of memory", "cuda_oom"),
        ("RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "cuda_oom"),
        ("RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "gpu_hardware"),
        ("RuntimeError: HIP error: an illegal memory access was encountered", "cuda_illegal_access"),
        ("RuntimeError: HIP error: invalid device function", "gpu_driver_mismatch"),
        ("RuntimeError: synStatus=26 [Generic failure] Device acquire failed.", "gpu_unavailable"),
        ("RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 12.15G at the bottom of memory.", "cuda_oom"),
        ("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "cuda_oom"),
        ("grpc.RpcError: RESOURCE_EXHAUSTED: message larger than 4194304", "python_exception"),
        ("ValueError: no HIP graphs are available", "python_exception"),
        ("ValueError: the page index is out of range", "python_exception"),
    ],
)
def test_the_same_cause_on_another_device(message: str, category: str) -> None:
    verdict = read(raised(3, message) + failed(1, 3, 40))
    assert (verdict.category, verdict.rank) == (category, 3)


@pytest.mark.parametrize(
    ("words", "category"),
    [
        ("Memory access fault by GPU node-3 (Agent handle: 0x1) on address 0x7000. Reason: Unknown.",
         "cuda_illegal_access"),
        (":0:rocdevice.cpp:2984: Queue 0x7f aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: x",
         "cuda_illegal_access"),
        ("Segmentation fault from GPU at 0xff0000, ctx_id: 1 (CCS) type: 0 (NotPresent)", "cuda_illegal_access"),
        ("HW Exception by GPU node-3 (Agent handle: 0x1) reason :GPU Hang", "gpu_hardware"),
    ],
)  # fmt: skip
def test_the_last_words_of_a_gpus_runtime_belong_to_the_process_that_aborted(words: str, category: str) -> None:
    one = read(f"step 3 loss 2.0\n{words}\n{failed(-6, 4, 44)}")
    assert (one.category, one.rank) == (category, 4)
    two = read(f"step 3 loss 2.0\n{words}\n{failed(-6, 4, 44)}{table((-6, 5, 45), (-6, 4, 44))}")
    assert (two.category, two.rank) == (category, None)


NPU = "RuntimeError: npuSynchronizeDevice NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is 507048"


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        ("EI0002: The wait execution of the Notify register times out. Reason: no record from remote rank [1].",
         "collective_timeout"),
        ("EI0006: Getting socket times out. Reason: the remote end sent nothing.", "collective_timeout"),
        ("EI0005: The arguments for collective communication are inconsistent between ranks.", "collective_mismatch"),
        ("EI0007: Failed to allocate resource[Notify]", "nccl_system_error"),
        ("EI0001: something else.", "python_exception"),
    ],
)  # fmt: skip
def test_what_a_device_reports_below_its_exception_says_why(reason: str, category: str) -> None:
    below = f"[ERROR] 2026-01-01-10:00:00 (PID:7, Device:5, RankID:5) ERR00100 PTA call acl api failed\n{reason}\n"
    verdict = read(f'{HEADER}  File "a.py", line 3, in f\n{NPU}\n{below}')
    assert (verdict.category, verdict.rank) == (category, None)


HOROVOD = (
    "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception\n"
)


@pytest.mark.parametrize(
    "prefix", ["[1,{}]<stderr>: ", "[1,{}]<stderr>:", "[{}]<stderr>:", "[prterun-n1-77@1,{}]<stderr>: ", "[{}] "]
)
def test_a_rank_that_mpi_writes_before_each_line_is_the_ranks_own(prefix: str) -> None:
    error = f'{HEADER}  File "a.py", line 3, in f\nKeyError: 3\n'
    lost = f'{HEADER}  File "a.py", line 4, in g\n{HOROVOD}'
    log = "".join(
        prefix.format(rank) + line for rank, text in ((2, error), (1, lost)) for line in text.splitlines(keepends=True)
    )
    verdict = read("[0] step 3 of 10\n" + log)
    assert (verdict.category, verdict.rank) == ("python_exception", 2)
    by_torchrun = read(log + failed(1, 0, 5) + table((1, 1, 6), (1, 0, 5)))
    assert by_torchrun.rank == (None if prefix == "[{}] " else 2)


@pytest.mark.parametrize(
    ("log", "category", "rank"),
    [
        ("[n1:55] *** Process received signal ***\n[n1:55] Signal: Segmentation fault (11)\n" + HOROVOD
         + "mpirun noticed that process rank 2 with PID 55 on node n1 exited on signal 11 (Segmentation fault).\n",
         "segfault", 2),
        ("prterun noticed that process rank 3 with PID 55 on node n1 exited on signal 7 (Bus error).\n",
         "bus_error_shm", 3),
        ("=   RANK 2 PID 55 RUNNING AT n1\n=   KILLED BY SIGNAL: 11 (Segmentation fault)\n", "segfault", 2),
        ("=   RANK 0 PID 54 RUNNING AT n1\n=   KILLED BY SIGNAL: 9 (Killed)\n"
         "=   RANK 2 PID 55 RUNNING AT n1\n=   EXIT CODE: 139\n", "segfault", 2),
        ("=   RANK 0 PID 54 RUNNING AT n1\n=   KILLED BY SIGNAL: 9 (Killed)\n", "sigkill_unattributed", None),
        ("=   RANK 1 PID 55 RUNNING AT n1\n=   KILLED BY SIGNAL: 9 (Killed)\n=   RANK 2 PID 56 RUNNING AT n1\n"
         "=   KILLED BY SIGNAL: 9 (Killed)\nkernel: Out of memory: Killed process 56 (python)\n", "host_oom_kill", 2),
        ("=   PID 55 RUNNING AT n1\n=   EXIT CODE: 11\n"
         "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)\n", "segfault", None),
        ("MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD\nwith errorcode 7.\n", "nonzero_exit", 5),
        ("application called MPI_Abort(MPI_COMM_WORLD, 7) - process 5\n", "nonzero_exit", 5),
        ("The first process to do so was:\n\n  Process name: [[7,1],5]\n  Exit code:    3\n", "nonzero_exit", 5),
        ("The first process to do so was:\n\n  Process name: [prterun-n1-7@1,5]\n  Exit code:    3\n",
         "nonzero_exit", 5),
    ],
)  # fmt: skip
def test_the_launchers_of_mpi_name_who_ended_and_how(log: str, category: str, rank: int | None) -> None:
    verdict = read(log)
    assert (verdict.category, verdict.rank) == (category, rank)


def test_ranks_that_mpi_reports_without_their_processes_are_not_one() -> None:
    log = "".join(
        f"process rank {rank} with PID {rank} on node n1 exited on signal 11 (Segmentation fault).\n" for rank in (1, 2)
    )
    verdict = read(log)
    assert (verdict.category, verdict.rank) == ("segfault", None)


def test_lines_of_hccls_watchdog_are_read_like_those_of_nccls() -> None:
    dog = "[rank{0}]:[E101 10:00:00.5 P.cpp:6] [Rank {0}] Watchdog caught collective operation timeout: WorkHCCL("
    call = "SeqNum=7, OpType={1}, Timeout(ms)=1000) ran for 1001 milliseconds before timing out.\n"
    log = "".join((dog + call).format(*one) for one in ((0, "ALLREDUCE"), (1, "BROADCAST")))
    assert read(log).category == "collective_mismatch"
    assert read(log.replace("BROADCAST", "ALLREDUCE")).category == "collective_timeout"


def test_of_two_versions_that_differ_neither_rank_is_the_odd_one() -> None:
    words = "Mismatched NCCL version detected : rank 0 version 22005 rank 4 version 21803"
    error = f"torch.distributed.DistBackendError: NCCL error, invalid usage\n[rank4]: Last error:\n[rank4]: {words}"
    verdict = read(raised(4, error) + failed(1, 4, 40))
    assert (verdict.category, verdict.rank) == ("gpu_driver_mismatch", None)


@pytest.mark.parametrize("prefix", ["", "[1,2]<stderr>:", '{"stream": "stderr", "log": "', "[default0]: "])
def test_the_process_of_a_librarys_line_is_found_behind_a_prefix(prefix: str) -> None:
    words = "n1:9001:9120 [4] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'"
    log = prefix + words + ('"}' if prefix.startswith("{") else "") + "\n"
    verdict = read(log + failed(1, 4, 9001) + table((1, 3, 9000), (1, 4, 9001)))
    assert (verdict.category, verdict.rank) == ("cuda_oom", 2 if "1,2" in prefix else 4)
