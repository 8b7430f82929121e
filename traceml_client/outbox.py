"""What the daemon has still to get from the ring. Nothing is copied aside: a resend reads the ring again."""

from __future__ import annotations

from traceml_client.protocol import columns, ring
from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.messages import Records
from traceml_client.recorder import Recorder

MAX_RECORDS_PER_FRAME = 250
"""One chunk row of the daemon's database: larger ones gain nothing, smaller ones cost it a wake-up each."""
_HOLD_NS = 500_000_000
"""A step may still be amended by a second optimizer right after it; the last one is sent once it is this old."""


class Outbox:
    """Positions of one rank's two streams between "sent" and "recorded"."""

    __slots__ = ("_lost_before", "_next_seq", "_recorder")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._next_seq = [0] * columns.NUM_STREAMS
        self._lost_before = [0] * columns.NUM_STREAMS
        """Records that were overwritten unsent are counted up to here."""

    def resume(self, next_seq: tuple[int, int]) -> None:
        """Go on where the daemon says that it stands.

        Raises:
            RemoteProtocolError: it claims records that were never made.
        """
        if any(not 0 <= seq <= head for seq, head in zip(next_seq, self.heads(), strict=True)):
            raise RemoteProtocolError(f"the aggregator wants to go on at {next_seq}, we recorded {self.heads()}")
        self._next_seq[:] = next_seq

    def acknowledge(self, stream: int, next_seq: int) -> None:
        """The daemon has committed everything before `next_seq`.

        Raises:
            RemoteProtocolError: it acknowledges what was never sent.
        """
        if not 0 <= stream < columns.NUM_STREAMS or next_seq > self._next_seq[stream]:
            raise RemoteProtocolError(f"the aggregator acknowledges {next_seq} of stream {stream}, never sent")
        self._recorder.set_stored(stream, next_seq)

    def acknowledge_all(self) -> None:
        """The daemon has committed the marker, and so all that was sent before it."""
        for stream, seq in enumerate(self._next_seq):
            self._recorder.set_stored(stream, seq)

    def heads(self) -> tuple[int, int]:
        """How many records of each stream were ever made."""
        return self._recorder.reader.head(columns.STEP_STREAM), self._recorder.reader.head(columns.SAMPLE_STREAM)

    def is_empty(self) -> bool:
        """Whether everything recorded has been sent (not: acknowledged)."""
        return tuple(self._next_seq) == self.heads()

    def next_records(self, *, now_ns: int, is_ending: bool) -> Records | None:
        """The next frame's records, null if there is nothing to send now. They count as sent."""
        for stream in range(columns.NUM_STREAMS):
            wanted = self._recorder.reader.head(stream) - self._next_seq[stream]
            if stream == columns.STEP_STREAM and not is_ending and wanted > 0 and not self._is_last_settled(now_ns):
                wanted -= 1
            if wanted > 0 and (records := self._read(stream, min(wanted, MAX_RECORDS_PER_FRAME))):
                return records
        return None

    def _is_last_settled(self, now_ns: int) -> bool:
        last = self._recorder.last_step()
        return last is None or now_ns - last[1] > _HOLD_NS

    def _read(self, stream: int, max_records: int) -> Records | None:
        reader = self._recorder.reader
        first, data = reader.read(stream, self._next_seq[stream], max_records)
        # The rank goes on recording: what it overtook while we copied is not whole any more.
        overtaken = max(0, reader.first_readable(stream) - first) * columns.RECORD_BYTES
        first += min(overtaken, len(data)) // columns.RECORD_BYTES
        data = data[overtaken:]
        self._count_lost(stream, first)
        if not data:
            self._next_seq[stream] = first
            return None
        count = len(data) // columns.RECORD_BYTES
        self._next_seq[stream] = first + count
        fmt, packed = columns.pack(memoryview(data))
        return Records(stream, first, count, fmt, packed)

    def _count_lost(self, stream: int, first: int) -> None:
        begin = max(self._next_seq[stream], self._lost_before[stream])
        if first > begin:
            self._recorder.add_dropped(stream, first - begin)
            self._lost_before[stream] = first


assert ring.STEP_CAPACITY > MAX_RECORDS_PER_FRAME
