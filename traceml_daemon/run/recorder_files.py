"""What dead ranks left in their nodes' folders: recorders whose records never reached the daemon."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceml_client.protocol import columns
from traceml_client.protocol.columns import NUM_STREAMS, SAMPLE_STREAM, STEP_STREAM
from traceml_client.protocol.errors import ProtocolError
from traceml_client.protocol.launch import RECORDER_FILE
from traceml_client.protocol.ring import MAIN_ERROR, THREAD_ERROR, RingReader
from traceml_daemon.peers.slots import RankSlot
from traceml_daemon.storage.chunks import MAX_JOINED, Chunk

_PLACE: Final = re.compile(r"node_(\d{1,9})/ranks/rank_(\d{1,9})/attempt_(\d{1,9})/")
MAX_RECORDER_BYTES: Final = 256 << 20
"""A recorder is 4.3 MB; anything far above is something else."""

_log = logging.getLogger("traceml_daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderFile:
    """One rank's kept ring, and where it says it belongs."""

    node_index: int
    rank: int
    attempt: int
    ring: RingReader


def find_recorders(run_dir: Path) -> Iterator[RecorderFile]:
    """Every readable recorder below `nodes/`, in a stable order; one that is damaged is told and passed over."""
    for path in sorted((run_dir / "nodes").glob(f"node_*/ranks/rank_*/attempt_*/{RECORDER_FILE}")):
        match = _PLACE.search(path.as_posix())
        try:
            if match is None or path.stat().st_size > MAX_RECORDER_BYTES:
                raise ProtocolError("it is not where or what a recorder should be")
            ring = RingReader(path.read_bytes())
        except (OSError, ProtocolError) as error:
            _log.warning("passed over %s: %s", path, error)
            continue
        node_index, rank, attempt = map(int, match.groups())
        yield RecorderFile(node_index=node_index, rank=rank, attempt=attempt, ring=ring)


def salvage(recorder: RecorderFile, slot: RankSlot) -> Iterator[Chunk]:
    """The records that the slot has not got yet, as rows for the database; the slot counts them."""
    ring = recorder.ring
    for stream in range(NUM_STREAMS):
        counts = slot.streams[stream]
        head = ring.head(stream)
        while counts.arrived.next_seq < head:
            first_seq, raw = ring.read(stream, counts.arrived.next_seq, MAX_JOINED)
            num_records = len(raw) // columns.RECORD_BYTES
            if not num_records:
                break
            counts.arrived.accept(first_seq, num_records)
            fmt, packed = columns.pack(memoryview(raw))
            chunk = Chunk(slot.id, stream, first_seq, num_records, fmt, packed, True)
            slot.settle(stream, num_records, is_salvaged=True, is_stored=True)
            yield chunk


def take_words(recorder: RecorderFile, slot: RankSlot) -> None:
    """What the ring says beside its records: errors, exit code, notes, the marker, how much there ever was."""
    ring = recorder.ring
    for area in (MAIN_ERROR, THREAD_ERROR):
        error = ring.error(area)
        if error is not None:
            slot.take_error(error)
    slot.exit_code = ring.exit_code() if slot.exit_code is None else slot.exit_code
    slot.notes = slot.notes or ring.notes()
    slot.is_finished = slot.is_finished or ring.is_marker_sent()
    slot.note_recorded((ring.head(STEP_STREAM), ring.head(SAMPLE_STREAM)))
