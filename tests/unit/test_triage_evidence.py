"""What a diagnosis quotes: the words that decide, from wherever they stand."""

from __future__ import annotations

import pytest

from tests.unit.test_triage_kinds import failed, read
from tests.unit.test_triage_rules import HEADER
from traceml_daemon.triage.verdict import Verdict

FRAME = '  File "/app/train.py", line 5, in step\n'
CHAINED = "\nThe above exception was the direct cause of the following exception:\n\n"
LONG = ", ".join(f"'--option_{number}=x'" for number in range(60))


def quoted(verdict: Verdict) -> str:
    return "\n".join(place.quote for place in verdict.evidence)


@pytest.mark.parametrize(
    ("log", "category", "words"),
    [
        (
            f"{HEADER}{FRAME}ValueError: host not found: Name or service not known\n{CHAINED}{HEADER}{FRAME}"
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the store failed.\n",
            "rendezvous_failed",
            "host not found: Name or service not known",
        ),
        (
            "Kernel.cu:16: gather: block: [28,0,0], thread: [96,0,0] Assertion `ind < size` failed.\n" * 9
            + f"{HEADER}{FRAME}RuntimeError: CUDA error: device-side assert triggered\n",
            "cuda_device_assert",
            "RuntimeError: CUDA error: device-side assert triggered",
        ),
        (
            "OpenBLAS blas_thread_init: pthread_create failed for thread 2 of 4: Resource temporarily unavailable\n" * 5
            + f"{HEADER}{FRAME}BlockingIOError: [Errno 11] Resource temporarily unavailable\n",
            "thread_limit",
            "BlockingIOError: [Errno 11]",
        ),
        (
            failed(1, 0, 40)
            + "Failures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  rank      : 0 "
            "(local_rank: 0)\n  exitcode  : 1 (pid: 40)\n  error_file: <N/A>\n  traceback : To enable it see x\n",
            "insufficient_evidence",
            "error_file: <N/A>",
        ),
        (
            f"[ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', {LONG}] exits with return "
            "code = -7\n",
            "bus_error_shm",
            "return code = -7",
        ),
        (
            f"subprocess.CalledProcessError: Command '['/usr/bin/python3', 'main.py', {LONG}]' died with "
            "<Signals.SIGSEGV: 11>.\n",
            "segfault",
            "died with <Signals.SIGSEGV: 11>",
        ),
        (
            f"slurmstepd: error: {'step ' * 99} Detected 1 oom_kill event in StepId=7.0\n",
            "host_oom_kill",
            "Detected 1 oom_kill event",
        ),
        (
            "[26.1] Killed process 41 (python) total-vm:51608852kB, anon-rss:16802944kB, file-rss:0kB\n",
            "host_oom_kill",
            "Killed process 41",
        ),
        (
            "[26.1] Killed process 41 (python), UID 1000, total-vm:51608852kB, anon-rss:16802944kB\n",
            "host_oom_kill",
            "Killed process 41",
        ),
    ],
)
def test_the_words_that_decide_are_quoted(log: str, category: str, words: str) -> None:
    verdict = read(log)
    assert verdict.category == category
    assert words in quoted(verdict)
    assert all(place.quote in log.split("\n")[place.line - 1] for place in verdict.evidence)
