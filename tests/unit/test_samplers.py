"""What the samplers make of the system's files and of NVML's answers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.harness.fake_nvml import FakeDevice, FakeNvml, NVMLError
from traceml_client.gpu_samplers import GpuSampler
from traceml_client.held_files import HeldFile
from traceml_client.loader_times import LoaderTimes
from traceml_client.node_samplers import CgroupSampler, TrafficSampler, disk_bytes, network_bytes
from traceml_client.protocol.columns import CGROUP_SAMPLE, GPU_HEALTH_SAMPLE, GPU_SAMPLE, TRAFFIC_SAMPLE
from traceml_client.samplers import ProcessSampler

GIB = 1 << 30


def test_a_held_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_text("MemTotal:     42 kB\nnr_periods 7\nempty:\n")
    file = HeldFile(str(path))
    assert file.fields((b"MemTotal", b"nr_periods", b"empty")) == {b"MemTotal": 42, b"nr_periods": 7}
    path.write_text("max\n")
    assert (file.number(), file.text(), file.head()) == (None, b"max\n", b"max\n")
    path.write_text("123 456" + " " * 50_000)
    assert (file.number(), len(file.text() or b"")) == (123, 50_007)
    file.close()
    assert (file.head(), file.text(), file.number(), file.fields((b"x",))) == (None, None, None, None)


def test_disks_are_counted_once_and_networks_without_virtual_ones() -> None:
    disks = b"""
   7       0 loop0 9 0 99999 0 9 0 99999 0 0 0 0
 259       0 nvme0n1 10 0 1000 0 20 0 2000 0 0 0 0
 259       1 nvme0n1p1 10 0 1000 0 20 0 2000 0 0 0 0
   8       0 sda 1 0 8 0 1 0 16 0 0 0 0
   8       1 sda1 1 0 8 0 1 0 16 0 0 0 0
 253       0 dm-0 1 0 8 0 1 0 16 0 0 0 0
"""
    networks = b"""Inter-|   Receive                          |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 5000 1 0 0 0 0 0 0 5000 1 0 0 0 0 0 0
  eth0: 700 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0
veth12: 900 1 0 0 0 0 0 0 90 1 0 0 0 0 0 0
 ib0:   200 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0
"""
    assert disk_bytes(disks) == (512 * 1008, 512 * 2016)
    assert network_bytes(networks) == (900, 40)


def test_traffic_and_process_of_this_machine() -> None:
    traffic, process = TrafficSampler(), ProcessSampler()
    (first,), (second,) = traffic.sample(), traffic.sample()
    assert first.kind == TRAFFIC_SAMPLE
    assert all(0 <= before <= after for before, after in zip(first.values[:4], second.values[:4], strict=True))
    assert process.sample()[0].values[5] >= -1
    traffic.close()
    process.close()
    assert traffic.sample() == process.sample() == []


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_nearest_limits_of_a_cgroup_without_what_can_be_given_back(tmp_path: Path) -> None:
    write(tmp_path, cgroup__controllers="cpu memory\n")
    write(tmp_path / "job", memory__max=f"{8 * GIB}\n", memory__current=f"{5 * GIB}\n", cpu__max="max 100000\n")
    write(tmp_path / "job", memory__stat=f"anon 1\ninactive_file {2 * GIB}\nactive_file 7\n")
    write(tmp_path / "job/task", memory__max="max\n", memory__current="1\n", cpu__max="150000 100000\n")
    write(tmp_path / "job/task", memory__stat="", cpu__stat="usage_usec 5\nnr_periods 100\nnr_throttled 30\n")
    sampler = CgroupSampler(tmp_path, "0::/job/task\n")
    assert sampler.sample() == [(CGROUP_SAMPLE, (3 * GIB, 8 * GIB, 1500, 100, 30, -1))]
    sampler.close()


def test_limits_of_the_first_version_of_cgroups(tmp_path: Path) -> None:
    write(tmp_path / "memory", memory__limit_in_bytes=f"{2**63 - 4096}\n", memory__usage_in_bytes="5\n")
    write(tmp_path / "memory/box", memory__limit_in_bytes=f"{4 * GIB}\n", memory__usage_in_bytes=f"{3 * GIB}\n")
    write(tmp_path / "memory/box", memory__stat=f"inactive_file 1\ntotal_inactive_file {GIB}\n")
    write(tmp_path / "cpu", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n", cpu__stat="nr_periods 0\n")
    sampler = CgroupSampler(tmp_path, "4:memory:/box\n1:cpu,cpuacct:/\n")
    assert sampler.sample() == [(CGROUP_SAMPLE, (2 * GIB, 4 * GIB, -1, -1, -1, -1))]
    sampler.close()


@pytest.mark.parametrize("membership", ["", "0::/nowhere\n", "0::/../outside\n", "nonsense"])
def test_without_limits_there_is_nothing_to_sample(tmp_path: Path, membership: str) -> None:
    write(tmp_path, cgroup__controllers="cpu memory\n")
    assert CgroupSampler(tmp_path, membership).sample() == []


def pretend_torch(monkeypatch: pytest.MonkeyPatch, *uuids: str, is_initialized: bool = True) -> None:
    """A torch whose first device is used, its second is not."""
    cuda = SimpleNamespace(
        is_initialized=lambda: is_initialized,
        device_count=lambda: len(uuids),
        memory_stats=lambda index: {"reserved_bytes.all.peak": 1 - index},
        get_device_properties=lambda index: SimpleNamespace(uuid=uuids[index]),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_a_used_gpu_is_sampled_under_its_index_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice("GPU-7", reasons=0x20, ecc=2, xids=[13, 79])
    nvml = FakeNvml(FakeDevice("GPU-0"), device)
    pretend_torch(monkeypatch, "7", "0")
    sampler = GpuSampler(lambda: nvml)
    usage, health = sampler.sample()
    assert usage == (GPU_SAMPLE, (0, 900, 10 * GIB, 80 * GIB, 60, 300_000))
    assert health == (GPU_HEALTH_SAMPLE, (0, 0x20, 2, 79, 1980, 700_000))
    assert sampler.sample()[1].values[3] == 79, "the last one stands"
    assert nvml.num_inits == 1


def test_what_a_device_does_not_support_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(FakeDevice("GPU-7", busy_percent=None, temperature=None, power_mw=None, reasons=None, ecc=None))
    pretend_torch(monkeypatch, "GPU-7")
    usage, health = GpuSampler(lambda: nvml).sample()
    assert usage.values == (0, -1, 10 * GIB, 80 * GIB, -1, -1)
    assert health.values[:4] == (0, -1, -1, 0)


def test_nvml_is_left_alone_before_cuda_is_and_given_up_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(has_driver=False)
    sampler = GpuSampler(lambda: nvml)
    pretend_torch(monkeypatch, "7", is_initialized=False)
    assert (sampler.sample(), nvml.num_inits) == ([], 0)
    pretend_torch(monkeypatch, "7")
    with pytest.raises(NVMLError):
        sampler.sample()
    assert (sampler.sample(), nvml.num_inits) == ([], 1)


def test_a_device_that_nvml_does_not_know_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_torch(monkeypatch, "7")
    assert GpuSampler(lambda: FakeNvml()).sample() == []


def test_workers_add_up_their_loading_each_in_its_own_place() -> None:
    times = LoaderTimes()
    assert times.totals() == (0, 0, 0)
    times.see_workers(2)
    for worker, duration_ns in ((0, 5), (1, 7), (0, 5)):
        times.add(worker, duration_ns)
    assert times.totals() == (2, 3, 17)
