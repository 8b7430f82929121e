"""What a rank and its node use, read once a second on the sender's thread: plain reads of /proc, no library.

Device memory is read from torch only where the script has initialised CUDA already; nothing here ever does that.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NamedTuple

from traceml_client.protocol.columns import (
    DEVICE_MEMORY_SAMPLE,
    NODE_SAMPLE,
    NOT_MEASURED,
    PROCESS_SAMPLE,
)

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SHM = "/dev/shm"


class Sample(NamedTuple):
    """A kind of `protocol.columns` and its six values; NOT_MEASURED where the system does not tell."""

    kind: int
    values: tuple[int, int, int, int, int, int]


def sample_process() -> Sample:
    """cpu_ns, rss_bytes, num_threads, num_fds, peak_rss_bytes of this process. Raises OSError without /proc."""
    resident_pages = int(_read("/proc/self/statm").split()[1])
    status = _read_fields("/proc/self/status", (b"Threads", b"VmHWM"))
    num_fds = len(os.listdir("/proc/self/fd")) - 1  # less the one that lists them
    peak_kib = status.get(b"VmHWM")
    return Sample(
        PROCESS_SAMPLE,
        (
            time.process_time_ns(),
            resident_pages * _PAGE_BYTES,
            status.get(b"Threads", NOT_MEASURED),
            num_fds,
            NOT_MEASURED if peak_kib is None else peak_kib * 1024,
            NOT_MEASURED,
        ),
    )


class NodeSampler:
    """CPU, memory and /dev/shm of the machine; one rank of a node samples it."""

    def __init__(self) -> None:
        self._last_cpu_ticks: tuple[int, int] | None = None

    def sample(self) -> Sample:
        """cpu_permille (all cores, since the last call), memory used and total, shm used and total. Raises OSError."""
        memory = _read_fields("/proc/meminfo", (b"MemTotal", b"MemAvailable"))
        total_kib, available_kib = memory.get(b"MemTotal"), memory.get(b"MemAvailable")
        is_known = total_kib is not None and available_kib is not None
        shm_used, shm_total = _shm_bytes()
        return Sample(
            NODE_SAMPLE,
            (
                self._cpu_permille(),
                (total_kib - available_kib) * 1024 if is_known else NOT_MEASURED,  # type: ignore[operator]
                total_kib * 1024 if is_known else NOT_MEASURED,  # type: ignore[operator]
                shm_used,
                shm_total,
                NOT_MEASURED,
            ),
        )

    def _cpu_permille(self) -> int:
        # user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time already.
        ticks = [int(field) for field in _read("/proc/stat").split(b"\n", 1)[0].split()[1:9]]
        idle, total = sum(ticks[3:5]), sum(ticks)
        last, self._last_cpu_ticks = self._last_cpu_ticks, (idle, total)
        if last is None or total <= last[1]:
            return NOT_MEASURED
        elapsed = total - last[1]
        return max(0, min(1000, 1000 - 1000 * (idle - last[0]) // elapsed))


def sample_devices() -> list[Sample]:
    """Allocator figures of every CUDA device that this process has used; empty where it uses none."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    # While torch is being imported, either may be missing.
    is_initialized = getattr(cuda, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return []
    return [sample for index in range(cuda.device_count()) if (sample := _sample_device(cuda, index))]


def _sample_device(cuda: Any, index: int) -> Sample | None:
    # The allocator's own counters: no call into the driver, no context on a device that is not ours.
    stats = cuda.memory_stats(index)
    reserved = stats.get("reserved_bytes.all.peak", 0)
    if not reserved:
        return None
    return Sample(
        DEVICE_MEMORY_SAMPLE,
        (
            index,
            stats["allocated_bytes.all.current"],
            stats["reserved_bytes.all.current"],
            stats["allocated_bytes.all.peak"],
            reserved,
            cuda.get_device_properties(index).total_memory,
        ),
    )


def _shm_bytes() -> tuple[int, int]:
    try:
        volume = os.statvfs(_SHM)
    except OSError:
        return NOT_MEASURED, NOT_MEASURED
    return (volume.f_blocks - volume.f_bfree) * volume.f_frsize, volume.f_blocks * volume.f_frsize


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _read_fields(path: str, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """`Name:   123 kB` lines of /proc, the number as it stands."""
    found = {}
    for line in _read(path).split(b"\n"):
        name, _, rest = line.partition(b":")
        if name in names:
            found[name] = int(rest.split()[0])
    return found
