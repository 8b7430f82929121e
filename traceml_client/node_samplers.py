"""What a node uses as a whole: processor, memory, /dev/shm, disks, networks, and the limits of the job's cgroup.

One rank a node samples it, once a second. Counters are given as they stand; rates are made from them in the report.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from traceml_client.held_files import HeldFile
from traceml_client.protocol.columns import CGROUP_SAMPLE, NODE_SAMPLE, NOT_MEASURED, TRAFFIC_SAMPLE
from traceml_client.samples import Sample

_SHM: Final = "/dev/shm"
_WHOLE_DISK: Final = re.compile(rb"(?:sd[a-z]+|vd[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+|dasd[a-z]+)$")
_SECTOR_BYTES: Final = 512
_VIRTUAL_NETWORK: Final = re.compile(rb"(?:lo|veth|docker|br-|virbr|ifb|bond|dummy|tun|tap|cali|flannel|cni)")
_UNLIMITED_BYTES: Final = 1 << 60
"""A version 1 cgroup without a limit says a number near 2**63."""


class NodeSampler:
    """Processor, memory and /dev/shm of the machine. Raises OSError where there is no /proc."""

    def __init__(self) -> None:
        self._stat = HeldFile("/proc/stat")
        self._meminfo = HeldFile("/proc/meminfo")
        self._last_cpu_ticks: tuple[int, int] | None = None

    def sample(self) -> list[Sample]:
        """Nothing once the script has closed our files."""
        memory = self._meminfo.fields((b"MemTotal", b"MemAvailable"))
        cpu_permille = self._cpu_permille()
        if memory is None or cpu_permille is None:
            return []
        total, available = (1024 * memory[name] if name in memory else -1 for name in (b"MemTotal", b"MemAvailable"))
        used = total - available if min(total, available) >= 0 else NOT_MEASURED
        return [Sample(NODE_SAMPLE, (cpu_permille, used, total, *_shm_bytes(), NOT_MEASURED))]

    def close(self) -> None:
        self._stat.close()
        self._meminfo.close()

    def _cpu_permille(self) -> int | None:
        text = self._stat.head()
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


class TrafficSampler:
    """Bytes that whole disks and real network interfaces have moved. Raises OSError where there is no /proc."""

    def __init__(self) -> None:
        self._disks = HeldFile("/proc/diskstats")
        self._networks = HeldFile("/proc/net/dev")

    def sample(self) -> list[Sample]:
        disks, networks = self._disks.text(), self._networks.text()
        if disks is None or networks is None:
            return []
        read, written = disk_bytes(disks)
        received, sent = network_bytes(networks)
        return [Sample(TRAFFIC_SAMPLE, (read, written, received, sent, NOT_MEASURED, NOT_MEASURED))]

    def close(self) -> None:
        self._disks.close()
        self._networks.close()


class CgroupSampler:
    """The nearest limits above this process. Samples nothing where there is no limit.

    Args:
        root: where cgroups are mounted.
        membership: the text of /proc/self/cgroup.
    """

    def __init__(self, root: Path, membership: str) -> None:
        self._files: dict[str, HeldFile] = {}
        self._names = _V2 if (root / "cgroup.controllers").exists() else _V1
        self._open("memory", self._names["memory"], _folders(root, membership, "memory"))
        self._open("cpu", self._names["cpu"], _folders(root, membership, "cpu"))

    def sample(self) -> list[Sample]:
        memory, cpu = self._memory(), self._cpu()
        if memory == _NO_MEMORY and cpu == _NO_CPU:
            return []
        return [Sample(CGROUP_SAMPLE, (*memory, *cpu, NOT_MEASURED))]

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _open(self, kind: str, names: dict[str, str], folders: list[Path]) -> None:
        """The files of the first folder with a limit of this kind."""
        for folder in folders:
            with contextlib.suppress(OSError, ValueError):
                limit = (folder / names["limit"]).read_text().split()
                if limit and limit[0] not in ("max", "-1") and int(limit[0]) < _UNLIMITED_BYTES:
                    self._files |= {f"{kind}.{use}": HeldFile(str(folder / name)) for use, name in names.items()}
                    return

    def _memory(self) -> tuple[int, int]:
        """(bytes that cannot be given back at once, limit)."""
        if "memory.limit" not in self._files:
            return _NO_MEMORY
        used, limit = self._files["memory.used"].number(), self._files["memory.limit"].number()
        pages = self._files["memory.pages"].fields(_FILE_PAGES) or {}
        if used is None or limit is None:
            return _NO_MEMORY
        return max(0, used - max(pages.get(b"total_inactive_file", 0), pages.get(b"inactive_file", 0))), limit

    def _cpu(self) -> tuple[int, int, int]:
        """(thousandths of a core, periods, periods in which it was throttled)."""
        if "cpu.limit" not in self._files:
            return _NO_CPU
        words = (self._files["cpu.limit"].head() or b"").split()
        period = int(words[1]) if len(words) > 1 else self._files["cpu.period"].number()
        counts = self._files["cpu.counts"].fields((b"nr_periods", b"nr_throttled"))
        if not words or not words[0].isdigit() or not period or counts is None:
            return _NO_CPU
        return 1000 * int(words[0]) // period, counts.get(b"nr_periods", -1), counts.get(b"nr_throttled", -1)


_NO_MEMORY: Final = (NOT_MEASURED, NOT_MEASURED)
_NO_CPU: Final = (NOT_MEASURED, NOT_MEASURED, NOT_MEASURED)
_FILE_PAGES: Final = (b"inactive_file", b"total_inactive_file")
_V2: Final = {
    "memory": {"limit": "memory.max", "used": "memory.current", "pages": "memory.stat"},
    "cpu": {"limit": "cpu.max", "counts": "cpu.stat"},
}
_V1: Final = {
    "memory": {"limit": "memory.limit_in_bytes", "used": "memory.usage_in_bytes", "pages": "memory.stat"},
    "cpu": {"limit": "cpu.cfs_quota_us", "period": "cpu.cfs_period_us", "counts": "cpu.stat"},
}


def _folders(root: Path, membership: str, controller: str) -> list[Path]:
    """This process's cgroup and those above it, nearest first; under a container's own mount, that of the container."""
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if controllers == "" and (root / "cgroup.controllers").exists():
            top = root
        elif controller in controllers.split(","):
            top = root / controller
        else:
            continue
        inner = Path(place.lstrip("/"))
        return [top / part for part in (inner, *inner.parents)] if ".." not in inner.parts else [top]
    return []


def _shm_bytes() -> tuple[int, int]:
    try:
        volume = os.statvfs(_SHM)
    except OSError:
        return NOT_MEASURED, NOT_MEASURED
    return (volume.f_blocks - volume.f_bfree) * volume.f_frsize, volume.f_blocks * volume.f_frsize


def disk_bytes(text: bytes) -> tuple[int, int]:
    """(read, written)."""
    lines = [line.split() for line in text.splitlines()]
    disks = [words for words in lines if len(words) > 9 and _WHOLE_DISK.match(words[2])]
    return _SECTOR_BYTES * sum(int(words[5]) for words in disks), _SECTOR_BYTES * sum(int(words[9]) for words in disks)


def network_bytes(text: bytes) -> tuple[int, int]:
    """(received, sent)."""
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(b":")
        words = rest.split()
        if len(words) > 8 and not _VIRTUAL_NETWORK.match(name.strip()):
            received, sent = received + int(words[0]), sent + int(words[8])
    return received, sent
