"""`traceml diagnose` on a log of any size: progress lines of eight ranks, and one rank's traceback at the end."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.aggregator import TRACEML

SMALL_BYTES = 200_000
_NUM_RANKS = 8
_CATEGORY = "cuda_oom"
_LINE = "[rank{}]: epoch 3 step {:>8} loss 2.3456 lr 3.0e-04 tokens/s 123456 grad_norm 0.98 eta 12:34:56\n"
_TRACEBACK = """[rank5]: Traceback (most recent call last):
[rank5]:   File "/job/train.py", line 41, in <module>
[rank5]:     main()
[rank5]:   File "/job/train.py", line 30, in main
[rank5]:     loss = model(batch)
[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79 GiB.
"""


def diagnose_s(num_bytes: int) -> float:
    """Seconds of the whole command. Raises ValueError if it does not find the cause and the rank."""
    with tempfile.TemporaryDirectory(prefix="log_") as folder:
        log = Path(folder) / "job.log"
        _write(log, num_bytes)
        started_s = time.perf_counter()
        done = subprocess.run([TRACEML, "diagnose", "--json", log], capture_output=True, timeout=300)
        taken_s = time.perf_counter() - started_s
        found = json.loads(done.stdout)
        if (done.returncode, found["category"], found["initiating_rank"]) != (0, _CATEGORY, 5):
            raise ValueError(f"{log.name}: {found['category']} of rank {found['initiating_rank']}")
        return taken_s


def _write(path: Path, num_bytes: int) -> None:
    with path.open("w") as file:
        step = num_written = 0
        while num_written < num_bytes:
            step += 1
            num_written += file.write("".join(_LINE.format(rank, step) for rank in range(_NUM_RANKS)))
        file.write(_TRACEBACK)
