"""Samples of GPUs and of cgroups to the report's figures and findings."""

from __future__ import annotations

from pathlib import Path

from tests.harness.database import MS, Content, Sample, Step, write_database
from tests.harness.facts import Rank, run_facts
from traceml_client.protocol import columns
from traceml_daemon.report.form import FinalSummary
from traceml_daemon.report.summary import build_summary

GIB = 1 << 30
STEPS = [Step(input_wait=0, forward=40 * MS, backward=40 * MS, optimizer=10 * MS, step=100 * MS)] * 60


def samples(busy_permille: int, reasons: int = 0, xid: int = 0, ecc: int = 0) -> list[Sample]:
    found = []
    for second in range(6):
        at_ns = second * 1000 * MS
        used = (0, busy_permille, 70 * GIB, 80 * GIB, 60 + second, 400_000)
        health = (0, reasons, ecc, xid, 1500, 700_000)
        for kind, values in (
            (columns.NODE_SAMPLE, (100, 10 * GIB, 100 * GIB, 0, GIB)),
            (columns.DEVICE_MEMORY_SAMPLE, (0, 60 * GIB, 70 * GIB, 65 * GIB, 72 * GIB, 80 * GIB)),
            (columns.GPU_SAMPLE, used),
            (columns.GPU_HEALTH_SAMPLE, health),
            (columns.CGROUP_SAMPLE, (3 * GIB, 4 * GIB, 2000, 100 + 10 * second, 5 * second)),
            (columns.TRAFFIC_SAMPLE, (1000 * second, 0, 500 * second, 7)),
        ):
            found.append(Sample(kind=kind, values=values, at_ns=at_ns))
    return found


def summary_of(tmp_path: Path, measured: list[Sample]) -> FinalSummary:
    rank = Rank(rank=0)
    content = Content(rank=0, steps=STEPS, samples=measured)
    database = write_database(tmp_path / "x.sqlite", {rank.incarnation: content})
    return build_summary(database, run_facts([rank], status="completed", exit_code=0), None)


def test_a_devices_figures_stand_with_its_node(tmp_path: Path) -> None:
    (node,) = summary_of(tmp_path, samples(900, reasons=0x24)).system.by_node
    (gpu,) = node.gpus
    assert (gpu.rank, gpu.device, gpu.memory_total_bytes, gpu.power_limit_w) == (0, 0, 80 * GIB, 700.0)
    assert gpu.utilization_percent is not None
    assert gpu.utilization_percent.mean == 90.0
    assert gpu.temperature_c is not None
    assert (gpu.temperature_c.max, gpu.temperature_c.last) == (65.0, 65.0)
    assert (gpu.throttled_share, gpu.throttle_reasons) == (1.0, ("the power cap", "heat"))
    assert (gpu.ecc_uncorrected, gpu.last_xid) == (0, 0)


def test_limits_and_traffic_stand_with_the_node(tmp_path: Path) -> None:
    (node,) = summary_of(tmp_path, samples(900)).system.by_node
    assert (node.cgroup_memory_limit_bytes, node.cgroup_cpu_limit_cores, node.cgroup_throttled_share) == (
        4 * GIB,
        2.0,
        0.5,
    )
    assert (node.disk_read_bytes_per_s, node.network_received_bytes_per_s) == (1000.0, 500.0)
    assert (node.disk_written_bytes_per_s, node.network_sent_bytes_per_s) == (0.0, 0.0)


def test_a_device_that_idles_and_one_in_trouble_are_named(tmp_path: Path) -> None:
    findings = summary_of(tmp_path, samples(200, reasons=0x40, xid=79, ecc=3)).findings
    kinds = [(finding.kind, finding.severity) for finding in findings]
    assert ("LOW_GPU_UTILIZATION", "warning") in kinds
    told = " ".join(finding.summary for finding in findings if finding.kind == "HOST_PRESSURE")
    assert "Xid 79" in told
    assert "3 uncorrected ECC errors" in told
    assert "heat, by the hardware" in told


def test_a_busy_device_is_no_finding_and_without_one_the_reason_is_given(tmp_path: Path) -> None:
    kinds = {finding.kind for finding in summary_of(tmp_path, samples(900)).findings}
    assert "LOW_GPU_UTILIZATION" not in kinds
    (tmp_path / "none").mkdir()
    system = summary_of(tmp_path / "none", samples(900)[:1]).system
    assert set(system.reasons) == {"gpus", "cgroup"}
