"""Rings in memory, and their content as values."""

from __future__ import annotations

from dataclasses import dataclass

from traceml_client.protocol import ring
from traceml_client.protocol.columns import PHASES, RECORD_BYTES, STEP_STREAM
from traceml_client.recorder import RECORD


@dataclass(frozen=True, slots=True)
class Step:
    """One step record, times in nanoseconds, null where not measured."""

    flags: int
    end_ns: int
    phases: dict[str, int | None]
    duration_ns: int

    @property
    def measured_ns(self) -> int:
        return sum(value for value in self.phases.values() if value is not None)


def new_ring(step_capacity: int = 1024, sample_capacity: int = 16) -> memoryview:
    memory = memoryview(bytearray(ring.ring_bytes(step_capacity, sample_capacity)))
    ring.initialize(memory, step_capacity, sample_capacity)
    return memory


def read_steps(reader: ring.RingReader) -> list[Step]:
    """Every step that is still in the ring."""
    _, data = reader.read(STEP_STREAM, 0, reader.head(STEP_STREAM))
    steps = []
    for offset in range(0, len(data), RECORD_BYTES):
        flags, end_ns, *values, duration_ns = RECORD.unpack_from(data, offset)
        phases = {phase: None if value < 0 else value for phase, value in zip(PHASES, values, strict=True)}
        steps.append(Step(flags, end_ns, phases, duration_ns))
    return steps
