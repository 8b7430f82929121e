"""GPUs as their driver sees them, through NVML: the devices that this rank has used, no others.

NVML is loaded only where a driver is, and only after the script has initialised CUDA; nothing here makes a context.
What a device or driver does not tell is NOT_MEASURED.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from traceml_client.protocol.columns import DEVICE_MEMORY_SAMPLE, GPU_HEALTH_SAMPLE, GPU_SAMPLE, NOT_MEASURED
from traceml_client.samples import Sample

_DRIVER: Final = "/proc/driver/nvidia"
_XID_EVENT: Final = 8
"""nvmlEventTypeXidCriticalError."""
_MAX_EVENTS: Final = 16
"""Of one second and device."""


class DeviceSampler:
    """Allocator figures of every CUDA device that this process has used."""

    def sample(self) -> list[Sample]:
        cuda = _initialized_cuda()
        if cuda is None:
            return []
        return [sample for index in range(cuda.device_count()) if (sample := _sample_memory(cuda, index))]

    def close(self) -> None:
        """Holds nothing."""


class GpuSampler:
    """Utilisation and health of the same devices.

    Args:
        load: imports NVML's bindings; raises ImportError where there are none.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._nvml: Any = None
        self._is_given_up = False
        self._devices: dict[int, _Device] = {}

    def sample(self) -> list[Sample]:
        """Raises what NVML raises at its start, once; then it is given up."""
        cuda = None if self._is_given_up else _initialized_cuda()
        if cuda is None:
            return []
        self._start()
        samples: list[Sample] = []
        for index in range(cuda.device_count()):
            if index not in self._devices and _reserved_bytes(cuda, index):
                self._devices[index] = _Device(self._nvml, index, _uuid(cuda, index))
        for device in self._devices.values():
            samples += device.samples()
        return samples

    def close(self) -> None:
        """The driver's library ends with the process."""
        self._is_given_up = True

    def _start(self) -> None:
        if self._nvml is None:
            self._is_given_up = True
            nvml = self._load()
            nvml.nvmlInit()
            self._nvml, self._is_given_up = nvml, False


class _Device:
    """One device under its index in this process, which the environment may have changed."""

    def __init__(self, nvml: Any, index: int, uuid: str | None) -> None:
        self._nvml = nvml
        self._index = index
        self._handle = self._events = None
        self._last_xid = NOT_MEASURED
        with contextlib.suppress(nvml.NVMLError):
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else None
        if self._handle is not None:
            with contextlib.suppress(nvml.NVMLError):
                self._events = nvml.nvmlEventSetCreate()
                nvml.nvmlDeviceRegisterEvents(self._handle, _XID_EVENT, self._events)
                self._last_xid = 0

    def samples(self) -> Iterator[Sample]:
        if self._handle is None:
            return
        nvml, handle = self._nvml, self._handle
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        busy = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        yield Sample(
            GPU_SAMPLE,
            (
                self._index,
                NOT_MEASURED if busy is None else 10 * busy.gpu,
                NOT_MEASURED if memory is None else memory.used,
                NOT_MEASURED if memory is None else memory.total,
                self._number(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
                self._number(nvml.nvmlDeviceGetPowerUsage, handle),
            ),
        )
        uncorrected = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        yield Sample(
            GPU_HEALTH_SAMPLE,
            (
                self._index,
                self._number(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
                self._number(nvml.nvmlDeviceGetTotalEccErrors, handle, *uncorrected),
                self._take_xid(),
                self._number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
                self._number(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            ),
        )

    def _take_xid(self) -> int:
        """The last Xid that the driver reported of this device; 0 for none."""
        if self._events is not None:
            with contextlib.suppress(self._nvml.NVMLError):  # nothing is waiting: a timeout
                for _ in range(_MAX_EVENTS):
                    self._last_xid = int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData)
        return self._last_xid

    def _number(self, ask: Callable[..., Any], *arguments: Any) -> int:
        answer = self._ask(ask, *arguments)
        return NOT_MEASURED if answer is None else int(answer)

    def _ask(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return ask(*arguments)
        except self._nvml.NVMLError:
            return None


def load_nvml() -> Any:
    import pynvml

    return pynvml


def open_gpu_sampler() -> GpuSampler | None:
    """Null where there is no NVIDIA driver."""
    return GpuSampler(load_nvml) if os.path.isdir(_DRIVER) else None


def _initialized_cuda() -> Any:
    """`torch.cuda` once the script has initialised it, else null. While torch is imported, either may be missing."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return cuda if is_initialized is not None and is_initialized() else None


def _sample_memory(cuda: Any, index: int) -> Sample | None:
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


def _reserved_bytes(cuda: Any, index: int) -> int:
    return int(cuda.memory_stats(index).get("reserved_bytes.all.peak", 0))


def _uuid(cuda: Any, index: int) -> str | None:
    """As NVML spells it; null for a torch that does not tell."""
    uuid = getattr(cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else str(uuid) if str(uuid).startswith("GPU-") else f"GPU-{uuid}"
