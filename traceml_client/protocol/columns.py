"""Records and their packed columns: one layout in the ring, one on the wire and in the database.

A ring record is eight signed 64-bit words: tag, end time, six values. A frame or a chunk row carries many of them,
column after column, little-endian, so that encoding, storing and statistics never touch single records.

Step stream (tag = flags, wait):   end_ns, input_wait, h2d, forward, backward, optimizer, step    (ns)
Sample stream (tag = a kind):    end_ns, six values whose meaning the kind gives
End times are the rank's monotonic clock; the hello carries the offset to wall time.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final

from traceml_client.protocol.errors import LocalProtocolError, RemoteProtocolError

STEP_STREAM: Final = 0
SAMPLE_STREAM: Final = 1
NUM_STREAMS: Final = 2

RECORD_WORDS: Final = 8
RECORD_BYTES: Final = 8 * RECORD_WORDS
NUM_VALUES: Final = 6

PHASES: Final = ("input_wait", "h2d", "forward", "backward", "optimizer")
"""The measured phases of a step record, in column order; the sixth column is the whole step, `residual` the rest."""

IS_SKIPPED: Final = 1
"""GradScaler found inf/nan: the step ended without an update."""
IS_WARMUP: Final = 2
"""The first step of an attempt, or one that compiled."""
IS_UNUSUAL: Final = 4
"""Holds a validation pass or a checkpoint beside the training step."""

WAIT_SHIFT: Final = 3
MAX_WAIT_LEVEL: Final = 30
"""The other five bits of a step's tag: 0 where it was not measured, else 1 + the share of the backward that was spent
waiting for other ranks' gradients, in thirtieths. A time of its own would cost every step eight bytes everywhere."""


def wait_bits(waited_ns: int, backward_ns: int) -> int:
    """To be added to a step's flags; 0 waited is not measured."""
    if waited_ns <= 0 or backward_ns <= 0:
        return 0
    return 1 + min(MAX_WAIT_LEVEL, (MAX_WAIT_LEVEL * waited_ns + backward_ns // 2) // backward_ns) << WAIT_SHIFT


def wait_level(tag: int) -> int:
    """0 where not measured, else 1 + thirtieths."""
    return tag >> WAIT_SHIFT


PROCESS_SAMPLE: Final = 1
"""cpu_ns, rss_bytes, num_threads, num_fds, peak_rss_bytes, cpu_wait_ns (of the main thread)"""
DEVICE_MEMORY_SAMPLE: Final = 2
"""device_index, allocated_bytes, reserved_bytes, peak_allocated_bytes, peak_reserved_bytes, total_bytes"""
NODE_SAMPLE: Final = 3
"""cpu_permille, memory_used_bytes, memory_total_bytes, shm_used_bytes, shm_total_bytes, NOT_MEASURED"""

TRAFFIC_SAMPLE: Final = 4
"""Since boot: disk_read_bytes, disk_written_bytes, network_received_bytes, network_sent_bytes, NOT_MEASURED twice"""
CGROUP_SAMPLE: Final = 5
"""memory_bytes, memory_limit_bytes, cpu_limit_millicores, num_periods, num_throttled, NOT_MEASURED"""
GPU_SAMPLE: Final = 6
"""device_index, utilization_permille, memory_used_bytes, memory_total_bytes, temperature_c, power_mw"""
GPU_HEALTH_SAMPLE: Final = 7
"""device_index, throttle_reasons (NVML's bits), ecc_uncorrected, last_xid (0 none), sm_clock_mhz, power_limit_mw"""
LOADER_SAMPLE: Final = 8
"""num_workers, num_batches, loading_ns (by all workers together), NOT_MEASURED three times"""

NOT_MEASURED: Final = -1

NARROW: Final = "qB6I"
"""33 bytes a record: what fits u32 nanoseconds (4.29 s); 0xFFFFFFFF stands for NOT_MEASURED."""
WIDE: Final = "qB6q"
"""57 bytes a record: any value."""
_NARROW_NULL: Final = 0xFFFFFFFF
RECORD_SIZE: Final = {NARROW: 8 + 1 + 4 * NUM_VALUES, WIDE: 8 + 1 + 8 * NUM_VALUES}

if sys.byteorder != "little":  # pragma: no cover - no such machine runs torch today
    raise ImportError("traceml's packed columns are little-endian and so must be the machine")


def pack(records: memoryview) -> tuple[str, bytes]:
    """Turn whole ring records (`records.nbytes` a multiple of 64) into (format, columns).

    Raises:
        LocalProtocolError: the buffer does not hold whole records.
    """
    if records.nbytes % RECORD_BYTES:
        raise LocalProtocolError(f"{records.nbytes} bytes are not whole records")
    words = records.cast("B").cast("q")
    tags = bytes(tag & 0xFF for tag in words[0::RECORD_WORDS].tolist())
    ends = words[1::RECORD_WORDS].tobytes()
    values = [words[2 + i :: RECORD_WORDS].tolist() for i in range(NUM_VALUES)]
    if any(column and (max(column) >= _NARROW_NULL or min(column) < NOT_MEASURED) for column in values):
        return WIDE, ends + tags + b"".join(array("q", column).tobytes() for column in values)
    narrow = (array("I", [value & _NARROW_NULL for value in column]).tobytes() for column in values)
    return NARROW, ends + tags + b"".join(narrow)


def check(fmt: str, count: int, columns: bytes) -> None:
    """Refuse what a well-behaved peer never sends.

    Raises:
        RemoteProtocolError: an unknown format, no records, or a length that does not fit the count.
    """
    size = RECORD_SIZE.get(fmt)
    if size is None or count < 1 or len(columns) != size * count:
        raise RemoteProtocolError(f"{len(columns)} bytes are not {count} records of format {fmt[:16]!r}")


def unpack(fmt: str, count: int, columns: bytes) -> tuple[array[int], bytes, list[array[int]]]:
    """Return (end_ns, tags, six value columns); narrow columns keep 0xFFFFFFFF for null, see `null_of`."""
    view = memoryview(columns)
    ends: array[int] = array("q")
    ends.frombytes(view[: 8 * count])
    tags = bytes(view[8 * count : 9 * count])
    width, code = (4, "I") if fmt == NARROW else (8, "q")
    values = []
    for i in range(NUM_VALUES):
        column: array[int] = array(code)
        start = 9 * count + width * count * i
        column.frombytes(view[start : start + width * count])
        values.append(column)
    return ends, tags, values


def null_of(fmt: str) -> int:
    """The stored value that stands for NOT_MEASURED in this format."""
    return _NARROW_NULL if fmt == NARROW else NOT_MEASURED


def drop_first(fmt: str, count: int, columns: bytes, num_dropped: int) -> bytes:
    """The same columns without their first `num_dropped` records (a resend that overlaps what is stored)."""
    widths = [8, 1] + [4 if fmt == NARROW else 8] * NUM_VALUES
    kept, start = [], 0
    for width in widths:
        kept.append(columns[start + width * num_dropped : start + width * count])
        start += width * count
    return b"".join(kept)
