"""The sections made from samples: memory and process by rank, system by node with the devices that ranks used."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from traceml_client.protocol import columns
from traceml_client.protocol.columns import GPU_HEALTH_SAMPLE, GPU_SAMPLE, NOT_MEASURED
from traceml_daemon.report import measured_form as form
from traceml_daemon.report.measured_form import GpuSystem, Level, NodeSystem, RankMemory, RankProcess
from traceml_daemon.report.measurements import Integers, Records

_NO_SAMPLES: Final = "no sample was recorded"
_NO_GPU: Final = "no rank used a GPU of which an NVIDIA driver told anything"
_NO_LIMIT: Final = "no cgroup above the ranks has a limit of memory or CPU"
_NO_DEVICE: Final = "no accelerator memory was measured"
_KINDS: Final = range(columns.PROCESS_SAMPLE, columns.LOADER_SAMPLE + 1)


class RankSamples:
    """One attempt's samples by kind: end times (n,) and values (6, n)."""

    def __init__(self, pieces: Iterable[Records]) -> None:
        whole = list(pieces)
        tags = np.concatenate([piece.tags for piece in whole] or [np.empty(0, np.uint8)])
        ends = np.concatenate([piece.end_ns for piece in whole] or [np.empty(0, np.int64)])
        values = np.concatenate([piece.values for piece in whole] or [np.empty((6, 0), np.int64)], axis=1)
        masks = {kind: tags == kind for kind in _KINDS}
        self.ends = {kind: ends[mask] for kind, mask in masks.items()}
        self.values = {kind: values[:, mask] for kind, mask in masks.items()}

    def column(self, kind: int, index: int) -> tuple[Integers, Integers]:
        """(end times, values) of one column where it was measured."""
        values = self.values[kind][index]
        is_measured = values != NOT_MEASURED
        return self.ends[kind][is_measured], values[is_measured]

    def memory(self, rank: int) -> RankMemory:
        _, rss, _, _, peak_rss, _ = self.values[columns.PROCESS_SAMPLE]
        devices = self.values[columns.DEVICE_MEMORY_SAMPLE]
        return RankMemory(
            rank=rank,
            rss_bytes=level(rss),
            peak_rss_bytes=largest(np.concatenate([peak_rss, rss])),
            devices=tuple(_device(devices[:, devices[0] == index], index) for index in np.unique(devices[0]).tolist()),
        )

    def process(self, rank: int) -> RankProcess:
        cpu_ns, _, threads, files, *_ = self.values[columns.PROCESS_SAMPLE]
        return RankProcess(
            rank=rank,
            cpu_percent=_rate_percent(cpu_ns, self.ends[columns.PROCESS_SAMPLE]),
            cpu_wait_share=self.cpu_wait_share(),
            max_threads=largest(threads),
            max_open_files=largest(files),
        )

    def cpu_wait_share(self, first_ns: int = 0, last_ns: int = sys.maxsize) -> float | None:
        """Between two instants: how long the main thread was ready to run and had no core; null if not measured."""
        ends, waits = self.column(columns.PROCESS_SAMPLE, 5)
        is_inside = (ends >= first_ns) & (ends <= last_ns)
        percent = _rate_percent(waits[is_inside], ends[is_inside])
        return None if percent is None else round(percent / 100.0, 4)

    def system(self, node_rank: int) -> NodeSystem | None:
        """Null where this rank did not sample its node."""
        cpu, used, total, shm_used, shm_total, _ = self.values[columns.NODE_SAMPLE]
        if len(cpu) == 0:
            return None
        return NodeSystem(
            node_rank=node_rank,
            cpu_percent=level(cpu, scale=0.1),
            memory_used_bytes=level(used),
            memory_total_bytes=largest(total),
            shm_used_bytes=level(shm_used),
            shm_total_bytes=largest(shm_total),
            **self._cgroup(),
            **self._traffic(),
            gpus=(),
        )

    def _cgroup(self) -> dict[str, Any]:
        used, limit, millicores, periods, throttled, _ = self.values[columns.CGROUP_SAMPLE]
        cores = largest(millicores)
        num_periods = _growth(periods)
        return {
            "cgroup_memory_bytes": level(used),
            "cgroup_memory_limit_bytes": largest(limit),
            "cgroup_cpu_limit_cores": None if cores is None else cores / 1000,
            "cgroup_throttled_share": round(_growth(throttled) / num_periods, 4) if num_periods else None,
        }

    def _traffic(self) -> dict[str, Any]:
        names = ("disk_read", "disk_written", "network_received", "network_sent")
        rates = (_rate(*self.column(columns.TRAFFIC_SAMPLE, index)) for index in range(len(names)))
        return {f"{name}_bytes_per_s": rate for name, rate in zip(names, rates, strict=True)}


def memory_section(ranks: tuple[RankMemory, ...]) -> form.MemorySection:
    peak_rss = max(((r.peak_rss_bytes, r.rank) for r in ranks if r.peak_rss_bytes is not None), default=(None, None))
    allocated = [
        (device.peak_allocated_bytes, rank.rank)
        for rank in ranks
        for device in rank.devices
        if device.peak_allocated_bytes is not None
    ]
    reasons = {} if peak_rss[0] is not None else {"rss": _NO_SAMPLES}
    if not allocated:
        reasons["devices"] = _NO_DEVICE
    overall = form.MemoryOverall(*peak_rss, *max(allocated, default=(None, None)))
    return form.MemorySection(overall=overall, by_rank=ranks, reasons=reasons)


def process_section(ranks: tuple[RankProcess, ...]) -> form.ProcessSection:
    cpu = [rank.cpu_percent for rank in ranks if rank.cpu_percent is not None]
    overall = form.ProcessOverall(
        cpu_percent=round(sum(cpu), 1) if cpu else None,
        max_threads=max((r.max_threads for r in ranks if r.max_threads is not None), default=None),
        max_open_files=max((r.max_open_files for r in ranks if r.max_open_files is not None), default=None),
    )
    reasons = {} if cpu else {"cpu_percent": "fewer than two samples of any rank"}
    return form.ProcessSection(overall=overall, by_rank=ranks, reasons=reasons)


def system_section(nodes: tuple[NodeSystem, ...]) -> form.SystemSection:
    overall = form.SystemOverall(
        max_cpu_percent=max((n.cpu_percent.max for n in nodes if n.cpu_percent is not None), default=None),
        max_memory_used_share=_share((n.memory_used_bytes, n.memory_total_bytes) for n in nodes),
        max_shm_used_share=_share((n.shm_used_bytes, n.shm_total_bytes) for n in nodes),
    )
    return form.SystemSection(overall=overall, by_node=nodes, reasons=dict(_missing(nodes)))


def _missing(nodes: tuple[NodeSystem, ...]) -> Iterator[tuple[str, str]]:
    if not nodes:
        yield "system", _NO_SAMPLES
    if not any(node.gpus for node in nodes):
        yield "gpus", _NO_GPU
    if all(node.cgroup_memory_limit_bytes is None and node.cgroup_cpu_limit_cores is None for node in nodes):
        yield "cgroup", _NO_LIMIT


def _device(values: Integers, index: int) -> form.DeviceMemory:
    _, allocated, reserved, peak_allocated, peak_reserved, total = values
    return form.DeviceMemory(
        device=index,
        allocated_bytes=level(allocated),
        reserved_bytes=level(reserved),
        peak_allocated_bytes=largest(np.concatenate([peak_allocated, allocated])),
        peak_reserved_bytes=largest(np.concatenate([peak_reserved, reserved])),
        total_bytes=largest(total),
    )


def level(values: Integers, *, scale: float = 1.0) -> Level | None:
    measured = values[values != NOT_MEASURED]
    if len(measured) == 0:
        return None
    numbers = (measured.mean(), measured.max(), measured[-1])
    mean, largest, last = (round(float(number) * scale, 1) for number in numbers)
    return Level(mean, largest, last)


def largest(values: Integers) -> int | None:
    measured = values[values != NOT_MEASURED]
    return int(measured.max()) if len(measured) else None


def _rate_percent(cpu_ns: Integers, ends_ns: Integers) -> float | None:
    """How much of a core was used."""
    is_measured = cpu_ns != NOT_MEASURED
    rate = _rate(ends_ns[is_measured], cpu_ns[is_measured])
    return None if rate is None else round(rate / 1e7, 1)


def _rate(ends_ns: Integers, counts: Integers) -> float | None:
    """Of a counter that only grows, by second, between its first and its last sample."""
    if len(counts) < 2 or ends_ns[-1] <= ends_ns[0]:
        return None
    return round(1e9 * float(counts[-1] - counts[0]) / float(ends_ns[-1] - ends_ns[0]), 1)


def _growth(counts: Integers) -> int:
    measured = counts[counts != NOT_MEASURED]
    return int(measured[-1] - measured[0]) if len(measured) else 0


def _share(pairs: Iterable[tuple[Level | None, int | None]]) -> float | None:
    shares = [level.max / total for level, total in pairs if level is not None and total]
    return round(max(shares), 4) if shares else None


_THROTTLING: Final = {
    0x04: "the power cap",
    0x08: "a slowdown by the hardware",
    0x20: "heat",
    0x40: "heat, by the hardware",
    0x80: "the power brake",
}
"""NVML's reasons that hold clocks back against the work's interest; idle or a chosen clock does not."""
_HARMFUL: Final = sum(_THROTTLING)


def gpus(samples: RankSamples, rank: int) -> Iterator[GpuSystem]:
    """By device, of one rank."""
    usage, health = samples.values[GPU_SAMPLE], samples.values[GPU_HEALTH_SAMPLE]
    for device in np.unique(usage[0]).tolist():
        yield _gpu(rank, device, usage[:, usage[0] == device], health[:, health[0] == device])


def _gpu(rank: int, device: int, usage: Integers, health: Integers) -> GpuSystem:
    _, busy, used, total, temperature, power = usage
    _, reasons, ecc, xid, clock, power_limit = health
    known = reasons[reasons != NOT_MEASURED]
    limit_mw = largest(power_limit)
    seen = int(np.bitwise_or.reduce(known)) if len(known) else 0
    return GpuSystem(
        rank=rank,
        device=device,
        utilization_percent=level(busy, scale=0.1),
        memory_used_bytes=level(used),
        memory_total_bytes=largest(total),
        temperature_c=level(temperature),
        power_w=level(power, scale=0.001),
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        sm_clock_mhz=level(clock),
        throttled_share=round(float(((known & _HARMFUL) > 0).mean()), 4) if len(known) else None,
        throttle_reasons=tuple(text for bit, text in _THROTTLING.items() if seen & bit),
        ecc_uncorrected=largest(ecc),
        last_xid=largest(xid[-1:]),
    )
