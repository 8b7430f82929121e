"""Samples of GPUs to the figures of each device that a rank used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceml_client.protocol.columns import GPU_HEALTH_SAMPLE, GPU_SAMPLE, NOT_MEASURED
from traceml_daemon.report.measured_form import GpuSystem
from traceml_daemon.report.measurements import Integers
from traceml_daemon.report.samples import RankSamples, largest, level

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
