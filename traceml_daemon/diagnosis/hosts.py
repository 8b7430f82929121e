"""Nodes that hold their ranks back, and devices that idle without a reason among the other findings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceml_daemon.diagnosis import policy
from traceml_daemon.diagnosis.finding import Confidence, Finding, Severity
from traceml_daemon.diagnosis.profile import NodeProfile, RunProfile


def find_host_pressure(run: RunProfile) -> Iterator[Finding]:
    """Saturated cores are what training on CPUs looks like: a warning only beside an accelerator, or under a quota."""
    for node in run.nodes:
        ranks = tuple(rank.rank for rank in run.ranks if rank.node_rank == node.node_rank)
        for severity, summary, action in _pressures(run, node, ranks):
            confidence: Confidence = "medium" if severity == "warning" else "low"
            yield Finding(
                kind="HOST_PRESSURE",
                severity=severity,
                confidence=confidence,
                summary=f"Node {node.node_rank}: {summary}.",
                action=action,
                ranks=ranks,
            )


def _pressures(run: RunProfile, node: NodeProfile, ranks: tuple[int, ...]) -> Iterator[tuple[Severity, str, str]]:
    waits = [r.cpu_wait_share for r in run.ranks if r.rank in ranks and r.cpu_wait_share is not None]
    usual: Severity = "warning" if run.has_accelerator else "info"
    if (node.throttled_share or 0.0) >= policy.THROTTLED_SHARE:
        text = f"the cgroup's CPU quota stopped it in {node.throttled_share:.0%} of its periods"
        yield "warning", text, "Raise the CPU limit of the container or job, or start fewer threads and workers."
    elif (node.cpu_share or 0.0) >= policy.BUSY_SHARE:
        yield usual, f"{node.cpu_share:.0%} of its cores are busy", "Fewer ranks, threads or workers than cores."
    if waits and float(np.median(waits)) >= policy.CONTENTION_SHARE:
        text = f"training threads were ready and had no core for {np.median(waits):.0%} of the time"
        yield usual, text, "Other work runs on these cores: move it, or start fewer threads and workers."
    if (node.max_shm_share or 0.0) >= policy.PRESSURE_SHARE:
        text = f"{node.max_shm_share:.0%} of /dev/shm was used; DataLoader workers die when it is full"
        yield "warning", text, "Enlarge /dev/shm (docker run --shm-size), or use fewer workers and smaller batches."
    for trouble in node.gpu_troubles:
        yield "warning", trouble, "Look at the device: nvidia-smi -q, the kernel's log, cooling, power limits."


def find_idle_devices(run: RunProfile, is_explained: bool) -> Iterator[Finding]:
    """`is_explained`: another finding says already why devices wait."""
    shares = {rank: share for node in run.nodes for rank, share in node.gpu_share.items()}
    low = {rank: share for rank, share in shares.items() if share < policy.LOW_GPU_SHARE}
    if low:
        devices = ", ".join(f"rank {rank} {share:.0%}" for rank, share in list(low.items())[:8])
        yield Finding(
            kind="LOW_GPU_UTILIZATION",
            severity="info" if is_explained else "warning",
            confidence="medium",
            summary=f"Devices are hardly used: {devices}.",
            action="Larger batches, mixed precision, torch.compile or CUDA graphs; fewer calls of .item().",
            ranks=tuple(low),
        )
