"""What a rank samples on the sender's thread: plain reads of files that are held open, no library, no lock."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from traceml_client.gpu_samplers import DeviceSampler, open_gpu_sampler
from traceml_client.held_files import HeldFile
from traceml_client.loader_times import TIMES
from traceml_client.node_samplers import CgroupSampler, NodeSampler, TrafficSampler
from traceml_client.protocol.columns import LOADER_SAMPLE, NOT_MEASURED, PROCESS_SAMPLE
from traceml_client.samples import Sample, Sampler

_CGROUPS: Final = Path("/sys/fs/cgroup")


class ProcessSampler:
    """This process. Raises OSError where there is no /proc."""

    def __init__(self) -> None:
        self._status = HeldFile("/proc/self/status")
        self._schedule = _open_schedule()

    def sample(self) -> list[Sample]:
        """Nothing once the script has closed our file."""
        status = self._status.fields((b"Threads", b"VmRSS", b"VmHWM"))
        if status is None:
            return []
        values = (
            time.process_time_ns(),
            1024 * status[b"VmRSS"] if b"VmRSS" in status else NOT_MEASURED,
            status.get(b"Threads", NOT_MEASURED),
            os.stat("/proc/self/fd").st_size or NOT_MEASURED,  # the kernel counts them there since Linux 6.2
            1024 * status[b"VmHWM"] if b"VmHWM" in status else NOT_MEASURED,
            self._cpu_wait_ns(),
        )
        return [Sample(PROCESS_SAMPLE, values)]

    def close(self) -> None:
        self._status.close()
        if self._schedule is not None:
            self._schedule.close()

    def _cpu_wait_ns(self) -> int:
        """How long the main thread was ready to run and had no core: the second number of schedstat."""
        words = ((self._schedule and self._schedule.head()) or b"").split()
        return int(words[1]) if len(words) > 1 else NOT_MEASURED


class LoaderSampler:
    """What the forked workers of training's DataLoader have done; nothing where there are none."""

    def sample(self) -> list[Sample]:
        totals = TIMES.totals()
        return [Sample(LOADER_SAMPLE, (*totals, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED))] if totals[0] else []

    def close(self) -> None:
        """Holds nothing."""


def open_samplers(*, is_node_sampled: bool) -> tuple[dict[str, Sampler], dict[str, Sampler]]:
    """(those that are asked often at first, those that are asked once a second), by the name of what they sample.

    Raises:
        OSError: there is no /proc.
    """
    often: dict[str, Sampler] = {"process": ProcessSampler(), "device": DeviceSampler()}
    seldom: dict[str, Sampler] = {"loader": LoaderSampler()}
    gpu = open_gpu_sampler()
    if gpu is not None:
        seldom["GPU"] = gpu
    if is_node_sampled:
        membership = Path("/proc/self/cgroup").read_text()
        seldom |= {"node": NodeSampler(), "cgroup": CgroupSampler(_CGROUPS, membership)}
        with contextlib.suppress(OSError):  # some sandboxes hide disks or networks
            seldom["traffic"] = TrafficSampler()
    return often, seldom


def _open_schedule() -> HeldFile | None:
    """Null where the kernel does not keep these times."""
    try:
        return HeldFile("/proc/self/schedstat")
    except OSError:
        return None
