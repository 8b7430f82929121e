"""What a flight recorder says of its rank, beside the records: small enough to be kept for every attempt."""

from __future__ import annotations

from dataclasses import dataclass

from traceml_client.protocol import columns, ring
from traceml_client.protocol.node import RankError

MARKER_STORED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """Of a recorder that cannot be read nothing is known."""

    exit_code: int | None = None
    """As the rank itself recorded it; null where it was ended from outside."""
    is_marker_sent: bool = False
    is_marker_stored: bool = False
    """The daemon has told the rank so."""
    error: RankError | None = None
    thread_error: RankError | None = None
    step: int = 0
    phase: str | None = None
    notes: tuple[str, ...] = ()
    num_steps_recorded: int = 0
    num_steps_dropped: int = 0


def read_record(reader: ring.RingReader | None) -> RankRecord:
    """Read it as it is now; `reader` is null where the header is destroyed."""
    if reader is None:
        return RankRecord()
    step, phase, _ = reader.progress()
    return RankRecord(
        exit_code=reader.exit_code(),
        is_marker_sent=reader.is_marker_sent(),
        is_marker_stored=reader.word(ring.MARKER_WORD) >= MARKER_STORED,
        error=reader.error(ring.MAIN_ERROR),
        thread_error=reader.error(ring.THREAD_ERROR),
        step=step,
        phase=phase,
        notes=reader.notes(),
        num_steps_recorded=reader.head(columns.STEP_STREAM),
        num_steps_dropped=reader.num_dropped(columns.STEP_STREAM),
    )
