"""A library with NVML's functions and a device or two whose figures a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


@dataclass
class FakeDevice:
    """One device; what is null it does not support."""

    uuid: str
    busy_percent: int | None = 90
    used: int = 10 << 30
    total: int = 80 << 30
    temperature: int | None = 60
    power_mw: int | None = 300_000
    reasons: int | None = 0
    ecc: int | None = 0
    xids: list[int] = field(default_factory=list)


class FakeNvml:
    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_CLOCK_SM = 1

    def __init__(self, *devices: FakeDevice, has_driver: bool = True) -> None:
        self._devices = {device.uuid: device for device in devices}
        self._has_driver = has_driver
        self.num_inits = 0

    def nvmlInit(self) -> None:
        self.num_inits += 1
        if not self._has_driver:
            raise NVMLError("driver not loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeDevice:
        if uuid not in self._devices:
            raise NVMLError("not found")
        return self._devices[uuid]

    def nvmlDeviceGetMemoryInfo(self, device: FakeDevice) -> Any:
        return SimpleNamespace(used=device.used, total=device.total)

    def nvmlDeviceGetUtilizationRates(self, device: FakeDevice) -> Any:
        return SimpleNamespace(gpu=_supported(device.busy_percent))

    def nvmlDeviceGetTemperature(self, device: FakeDevice, _sensor: int) -> int:
        return _supported(device.temperature)

    def nvmlDeviceGetPowerUsage(self, device: FakeDevice) -> int:
        return _supported(device.power_mw)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: FakeDevice) -> int:
        return _supported(device.reasons)

    def nvmlDeviceGetTotalEccErrors(self, device: FakeDevice, _kind: int, _counter: int) -> int:
        return _supported(device.ecc)

    def nvmlDeviceGetClockInfo(self, _device: FakeDevice, _clock: int) -> int:
        return 1980

    def nvmlDeviceGetEnforcedPowerLimit(self, _device: FakeDevice) -> int:
        return 700_000

    def nvmlEventSetCreate(self) -> list[FakeDevice]:
        return []

    def nvmlDeviceRegisterEvents(self, device: FakeDevice, _kinds: int, events: list[FakeDevice]) -> None:
        events.append(device)

    def nvmlEventSetWait_v2(self, events: list[FakeDevice], _timeout_ms: int) -> Any:
        for device in events:
            if device.xids:
                return SimpleNamespace(eventData=device.xids.pop(0))
        raise NVMLError("timeout")


def _supported(value: int | None) -> int:
    if value is None:
        raise NVMLError("not supported")
    return value
