"""Load on an aggregator: many ranks of one process, frames encoded before the clock starts.

`python -m benchmarks.generator PORT RANKS STEPS STEPS_PER_FRAME`, the token in TRACEML_TOKEN. It prints a JSON line
when connected, sends at a line on standard input, prints when everything is acknowledged as stored, and sends the
markers at the next line.
"""

from __future__ import annotations

import json
import os
import random
import resource
import selectors
import socket
import sys
import threading
import time
from array import array

from benchmarks.aggregator import RANKS_PER_NODE, RUN_NAME
from traceml_client.protocol import codec, columns
from traceml_client.protocol.frames import FrameReader
from traceml_client.protocol.messages import (
    MARKER_STREAM,
    NUMBER_ME,
    PROTOCOL_MAJOR,
    Ack,
    Challenge,
    RankFinished,
    RankHello,
    Records,
    Welcome,
)
from traceml_client.protocol.proof import prove

NUM_VARIANTS = 7
"""Ranks differ in seven ways, so that statistics do not run over equal data, at the price of seven encodings."""
STEP_NS = 50_000_000


class Acks:
    """Reads what the daemon answers, on a thread of its own, until every rank has what it waits for."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._selector = selectors.DefaultSelector()
        for one in sockets:
            self._selector.register(one, selectors.EVENT_READ, FrameReader())
        self._num_ranks = len(sockets)
        self.error: str | None = None

    def wait_for(self, stream: int, next_seq: int) -> float:
        """Block until all ranks got `Ack(stream, next_seq)`; returns the instant of the last one."""
        num_waiting = self._num_ranks
        while num_waiting:
            for key, _ in self._selector.select(60):
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if not data:
                    raise ConnectionError("the daemon closed a connection")
                for payload in key.data.feed(data):
                    message = codec.decode_from_daemon(payload)
                    if isinstance(message, Ack) and message.stream == stream and message.next_seq >= next_seq:
                        num_waiting -= 1
        return time.perf_counter()


def connect(port: int, rank: int, num_ranks: int, token: str) -> socket.socket:
    """One rank, let in. Raises ConnectionError."""
    one = socket.create_connection(("127.0.0.1", port), timeout=30)
    reader = FrameReader()
    challenge = _receive(one, reader)
    if not isinstance(challenge, Challenge):
        raise ConnectionError(f"not a challenge: {challenge}")
    node, local_rank = divmod(rank, RANKS_PER_NODE)
    one.sendall(
        codec.encode(
            RankHello(
                version=PROTOCOL_MAJOR,
                run=RUN_NAME,
                proof=prove(token, challenge.nonce, "rank", RUN_NAME, NUMBER_ME, local_rank, NUMBER_ME),
                node_index=NUMBER_ME,
                local_rank=local_rank,
                attempt=NUMBER_ME,
                rank=rank,
                world_size=num_ranks,
                local_world_size=min(num_ranks, RANKS_PER_NODE),
                torch_restart_count=0,
                host=f"node{node}",
                pid=10_000 + rank,
                start_ticks=1,
                wall_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
            )
        )
    )
    answer = _receive(one, reader)
    if not isinstance(answer, Welcome):
        raise ConnectionError(f"not let in: {answer}")
    one.settimeout(None)
    return one


def encode_frames(steps: int, steps_per_frame: int) -> list[list[bytes]]:
    """All frames of one rank, in order, for each variant."""
    random.seed(5)
    first_end_ns = time.monotonic_ns()
    variants = []
    for _ in range(NUM_VARIANTS):
        frames = []
        for first in range(0, steps, steps_per_frame):
            count = min(steps_per_frame, steps - first)
            packed = _packed(first_end_ns + first * STEP_NS, count)
            frames.append(codec.encode(Records(columns.STEP_STREAM, first, count, columns.NARROW, packed)))
        variants.append(frames)
    return variants


def _packed(first_end_ns: int, count: int) -> bytes:
    ends = array("q", range(first_end_ns, first_end_ns + count * STEP_NS, STEP_NS))
    phases = [array("I", (random.randrange(100_000, 9_000_000) for _ in range(count))) for _ in columns.PHASES]
    steps = array("I", (sum(values) + 400_000 for values in zip(*phases, strict=True)))
    return ends.tobytes() + bytes(count) + b"".join(column.tobytes() for column in (*phases, steps))


def _receive(one: socket.socket, reader: FrameReader) -> object:
    while True:
        data = one.recv(1 << 16)
        if not data:
            raise ConnectionError("the daemon closed the connection")
        for payload in reader.feed(data):
            return codec.decode_from_daemon(payload)


def main() -> None:
    port, num_ranks, steps, steps_per_frame = map(int, sys.argv[1:5])
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    variants = encode_frames(steps, steps_per_frame)
    sockets = [connect(port, rank, num_ranks, os.environ["TRACEML_TOKEN"]) for rank in range(num_ranks)]
    acks = Acks(sockets)
    num_bytes = sum(sum(map(len, variants[rank % NUM_VARIANTS])) for rank in range(num_ranks))
    _say(num_frames=num_ranks * len(variants[0]), num_bytes=num_bytes)
    sys.stdin.readline()
    started_s = time.perf_counter()
    sender = threading.Thread(target=_send_all, args=(sockets, variants), daemon=True)
    sender.start()
    stored_s = acks.wait_for(columns.STEP_STREAM, steps) - started_s
    sender.join()
    _say(stored_s=stored_s)
    sys.stdin.readline()
    marker = codec.encode(RankFinished(ended_ns=time.time_ns(), next_seq=(steps, 0), exit_code=0, error=None))
    for one in sockets:
        one.sendall(marker)
    acks.wait_for(MARKER_STREAM, 0)
    for one in sockets:
        one.close()
    _say(is_finished=True)


def _send_all(sockets: list[socket.socket], variants: list[list[bytes]]) -> None:
    for index in range(len(variants[0])):
        for rank, one in enumerate(sockets):
            one.sendall(variants[rank % NUM_VARIANTS][index])


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
