"""What a rank and its node use, read once a second on the sender's thread: plain reads of /proc, no library.

The files are opened before the script runs and read again and again: a descriptor that appeared for an instant, under
the lowest free number, would be one that the script's own thread is about to get, or to close.
Device memory is read from torch only where the script has initialised CUDA already; nothing here ever does that.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Any, NamedTuple, Protocol

from traceml_client.descriptors import HeldDescriptor
from traceml_client.protocol.columns import (
    DEVICE_MEMORY_SAMPLE,
    NODE_SAMPLE,
    NOT_MEASURED,
    PROCESS_SAMPLE,
)

_SHM = "/dev/shm"
_MAX_FILE_BYTES = 16 * 1024
"""/proc/stat is longer on a large machine; its first line is all that is wanted of it."""


class Sample(NamedTuple):
    """A kind of `protocol.columns` and its six values; NOT_MEASURED where the system does not tell."""

    kind: int
    values: tuple[int, int, int, int, int, int]


class Sampler(Protocol):
    """One kind of sample. `sample` raises OSError where the system refuses."""

    def sample(self) -> list[Sample]: ...

    def close(self) -> None: ...


def open_samplers(*, is_node_sampled: bool) -> dict[str, Sampler]:
    """All that this rank samples, by the name of its kind. Raises OSError where there is no /proc."""
    samplers: dict[str, Sampler] = {"process": ProcessSampler(), "device": DeviceSampler()}
    return {**samplers, "node": NodeSampler()} if is_node_sampled else samplers


class ProcessSampler:
    """This process. Raises OSError where there is no /proc."""

    def __init__(self) -> None:
        self._status = _open("/proc/self/status")

    def sample(self) -> list[Sample]:
        """cpu_ns, rss_bytes, num_threads, num_fds, peak_rss_bytes; nothing once the script has closed our file."""
        status = _read_fields(self._status, (b"Threads", b"VmRSS", b"VmHWM"))
        if status is None:
            return []
        values = (
            time.process_time_ns(),
            _bytes_of(status, b"VmRSS"),
            status.get(b"Threads", NOT_MEASURED),
            os.stat("/proc/self/fd").st_size or NOT_MEASURED,  # the kernel counts them there since Linux 6.2
            _bytes_of(status, b"VmHWM"),
            NOT_MEASURED,
        )
        return [Sample(PROCESS_SAMPLE, values)]

    def close(self) -> None:
        self._status.close()


class NodeSampler:
    """CPU, memory and /dev/shm of the machine; one rank a node samples it. Raises OSError where there is no /proc."""

    def __init__(self) -> None:
        self._stat = _open("/proc/stat")
        self._meminfo = _open("/proc/meminfo")
        self._last_cpu_ticks: tuple[int, int] | None = None

    def sample(self) -> list[Sample]:
        """cpu_permille (all cores, since last time), memory used and total, shm used and total; nothing as above."""
        memory = _read_fields(self._meminfo, (b"MemTotal", b"MemAvailable"))
        cpu_permille = self._cpu_permille()
        if memory is None or cpu_permille is None:
            return []
        total, available = _bytes_of(memory, b"MemTotal"), _bytes_of(memory, b"MemAvailable")
        used = total - available if NOT_MEASURED not in (total, available) else NOT_MEASURED
        return [Sample(NODE_SAMPLE, (cpu_permille, used, total, *_shm_bytes(), NOT_MEASURED))]

    def close(self) -> None:
        self._stat.close()
        self._meminfo.close()

    def _cpu_permille(self) -> int | None:
        text = _read(self._stat)
        if text is None:
            return None
        # user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time already.
        ticks = [int(field) for field in text.split(b"\n", 1)[0].split()[1:9]]
        idle, total = sum(ticks[3:5]), sum(ticks)
        last, self._last_cpu_ticks = self._last_cpu_ticks, (idle, total)
        if last is None or total <= last[1]:
            return NOT_MEASURED
        elapsed = total - last[1]
        return max(0, min(1000, 1000 - 1000 * (idle - last[0]) // elapsed))


class DeviceSampler:
    """Allocator figures of every CUDA device that this process has used."""

    def sample(self) -> list[Sample]:
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        # While torch is being imported, either may be missing.
        is_initialized = getattr(cuda, "is_initialized", None)
        if is_initialized is None or not is_initialized():
            return []
        return [sample for index in range(cuda.device_count()) if (sample := _sample_device(cuda, index))]

    def close(self) -> None:
        """Holds nothing."""


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


def _open(path: str) -> HeldDescriptor:
    return HeldDescriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _read(file: HeldDescriptor) -> bytes | None:
    """The file's text; null once the script has closed our descriptor, which it may do at any instant."""
    try:
        return os.pread(file.fd, _MAX_FILE_BYTES, 0) if file.is_intact() else None
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return None


def _read_fields(file: HeldDescriptor, names: tuple[bytes, ...]) -> dict[bytes, int] | None:
    """`Name:   123 kB` lines of /proc, the number as it stands."""
    text = _read(file)
    if text is None:
        return None
    found = {}
    for line in text.split(b"\n"):
        name, _, rest = line.partition(b":")
        if name in names:
            found[name] = int(rest.split()[0])
    return found


def _bytes_of(fields: dict[bytes, int], name: bytes) -> int:
    return fields[name] * 1024 if name in fields else NOT_MEASURED
