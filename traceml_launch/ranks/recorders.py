"""What dead ranks left in their rings: handed in to the daemon, and kept in a file where that is not enough."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from typing import Final

from traceml_client.protocol import columns, launch, messages, ring
from traceml_launch.aggregator.daemon_link import DaemonLink
from traceml_launch.ranks.workers import Worker
from traceml_launch.waiting import unless

RECORDS_A_MESSAGE: Final = 250
SILENCE_S: Final = 3.0
"""Between two acknowledgements; a daemon that takes longer to commit has another problem."""

_Slot = tuple[int, int, int]
"""(local rank, attempt, stream)."""


class Salvage:
    """Hands in what the daemon has not got of each dead rank. Sending twice is harmless: sequences tell."""

    def __init__(self) -> None:
        self._acknowledged: dict[_Slot, int] = {}
        self._changed = asyncio.Event()

    def on_ack(self, ack: messages.SalvageAck) -> None:
        slot = (ack.local_rank, ack.attempt, ack.stream)
        self._acknowledged[slot] = max(ack.next_seq, self._acknowledged.get(slot, 0))
        self._changed.set()

    def is_complete(self, worker: Worker) -> bool:
        """Whether the daemon has stored everything that this dead rank recorded (or its recorder is unreadable)."""
        reader = worker.reader
        return reader is None or all(
            self._next_seq(worker, reader, stream) >= reader.head(stream) for stream in range(columns.NUM_STREAMS)
        )

    async def hand_in(self, worker: Worker, link: DaemonLink) -> bool:
        """Send until the daemon has acknowledged all of it; False where the connection breaks or it falls silent."""
        for message in self._messages(worker):
            if not await link.send_once(message):
                return False
        while not self.is_complete(worker):
            self._changed.clear()
            if not await unless(self._changed.wait(), timeout_s=SILENCE_S):
                return False
        return True

    def _messages(self, worker: Worker) -> Iterator[messages.Salvaged]:
        reader = worker.reader
        if reader is None:
            return
        for stream in range(columns.NUM_STREAMS):
            next_seq = self._next_seq(worker, reader, stream)
            while next_seq < reader.head(stream):
                first_seq, raw = reader.read(stream, next_seq, RECORDS_A_MESSAGE)
                count = len(raw) // columns.RECORD_BYTES
                fmt, packed = columns.pack(memoryview(raw))
                yield messages.Salvaged(
                    local_rank=worker.request.local_rank,
                    attempt=worker.attempt,
                    records=messages.Records(stream, first_seq, count, fmt, packed),
                )
                next_seq = first_seq + count

    def _next_seq(self, worker: Worker, reader: ring.RingReader, stream: int) -> int:
        slot = (worker.request.local_rank, worker.attempt, stream)
        return max(reader.num_stored(stream), self._acknowledged.get(slot, 0))


def keep(workers: Iterable[Worker]) -> list[str]:
    """Write each one's `recorder.bin`; return a sentence for each that could not be written."""
    problems = []
    for worker in workers:
        try:
            _write_recorder(worker)
        except OSError as error:
            problems.append(f"{worker.rank_dir / launch.RECORDER_FILE} cannot be written: {error.strerror}")
    return problems


def _write_recorder(worker: Worker) -> None:
    """The ring's content, sparse: slots that were never used take no room on the disk."""
    reader = worker.reader
    if reader is None or worker.ring is None:
        return
    content = worker.ring.content()
    fd = os.open(worker.rank_dir / launch.RECORDER_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, content[: ring.HEADER_BYTES], 0)
        for stream in range(columns.NUM_STREAMS):
            start = ring.stream_offset(stream, reader.capacities[0])
            used = columns.RECORD_BYTES * min(reader.head(stream), reader.capacities[stream])
            os.pwrite(fd, content[start : start + used], start)
        os.ftruncate(fd, len(content))
    finally:
        os.close(fd)
