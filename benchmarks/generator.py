"""Load on an aggregator: many ranks of one process, frames encoded before the clock starts.

`python -m benchmarks.generator PORT RANKS STEPS STEPS_PER_FRAME STEPS_PER_S`, the token in TRACEML_TOKEN. It prints a
JSON line when connected, sends at a line on standard input, prints when everything is acknowledged as stored, and sends
the markers at the next line. STEPS_PER_S is the pace of all ranks together, whose frames are then spread evenly over
time, and rank 0 pings; 0 is as fast as the daemon takes them.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import sys
import threading
import time

import numpy as np

from benchmarks.aggregator import RANKS_PER_NODE, RUN_NAME
from traceml_client.protocol import codec, columns
from traceml_client.protocol.frames import FrameReader
from traceml_client.protocol.messages import (
    MARKER_STREAM,
    NUMBER_ME,
    PROTOCOL_MAJOR,
    Ack,
    Challenge,
    Ping,
    Pong,
    RankFinished,
    RankHello,
    Records,
    Welcome,
)
from traceml_client.protocol.proof import prove

NUM_VARIANTS = 7
"""Ranks differ in seven ways, so that statistics do not run over equal data, at the price of seven encodings."""
STEP_NS = 50_000_000
PING_INTERVAL_S = 0.02


class Acks:
    """Reads what the daemon answers, on a thread of its own, until every rank has what it waits for."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._selector = selectors.DefaultSelector()
        for one in sockets:
            self._selector.register(one, selectors.EVENT_READ, FrameReader())
        self._num_ranks = len(sockets)
        self.answer_ms: list[float] = []
        """From a ping to its answer: the daemon's loop, both schedulers and this thread."""

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
                    if isinstance(message, Pong):
                        self.answer_ms.append((time.monotonic_ns() - message.sent_ns) / 1e6)
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
    random = np.random.default_rng(5)
    first_end_ns = time.monotonic_ns()
    variants = []
    for _ in range(NUM_VARIANTS):
        frames = []
        for first in range(0, steps, steps_per_frame):
            count = min(steps_per_frame, steps - first)
            packed = _packed(first_end_ns + first * STEP_NS, count, random)
            frames.append(codec.encode(Records(columns.STEP_STREAM, first, count, columns.NARROW, packed)))
        variants.append(frames)
    return variants


def _packed(first_end_ns: int, count: int, random: np.random.Generator) -> bytes:
    ends = np.arange(first_end_ns, first_end_ns + count * STEP_NS, STEP_NS, np.int64)
    phases = random.integers(100_000, 9_000_000, (len(columns.PHASES), count), np.uint32)
    steps = phases.sum(axis=0, dtype=np.uint32) + np.uint32(400_000)
    return ends.tobytes() + bytes(count) + phases.tobytes() + steps.tobytes()


def _receive(one: socket.socket, reader: FrameReader) -> object:
    while True:
        data = one.recv(1 << 16)
        if not data:
            raise ConnectionError("the daemon closed the connection")
        for payload in reader.feed(data):
            return codec.decode_from_daemon(payload)


def main() -> None:
    port, num_ranks, steps, steps_per_frame, steps_per_s = map(int, sys.argv[1:6])
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    variants = encode_frames(steps, steps_per_frame)
    sockets = [connect(port, rank, num_ranks, os.environ["TRACEML_TOKEN"]) for rank in range(num_ranks)]
    acks = Acks(sockets)
    num_bytes = sum(sum(map(len, variants[rank % NUM_VARIANTS])) for rank in range(num_ranks))
    _say(num_frames=num_ranks * len(variants[0]), num_bytes=num_bytes)
    sys.stdin.readline()
    started_s = time.perf_counter()
    send = (_send_paced, steps_per_frame * num_ranks / steps_per_s) if steps_per_s else (_send_all,)
    sender = threading.Thread(target=send[0], args=(sockets, variants, *send[1:]), daemon=True)
    sender.start()
    stored_s = acks.wait_for(columns.STEP_STREAM, steps) - started_s
    sender.join()
    _say(stored_s=stored_s, answer_ms=sorted(acks.answer_ms))
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


def _send_paced(sockets: list[socket.socket], variants: list[list[bytes]], interval_s: float) -> None:
    """A frame of each rank every `interval_s`, one rank after the other, and a ping in between."""
    start_s = next_ping_s = time.perf_counter()
    for index in range(len(variants[0])):
        for rank, one in enumerate(sockets):
            due_s = start_s + interval_s * (index + rank / len(sockets))
            if (ahead_s := due_s - time.perf_counter()) > 0:
                time.sleep(ahead_s)
            if time.perf_counter() >= next_ping_s:
                next_ping_s += PING_INTERVAL_S
                sockets[0].sendall(codec.encode(Ping(time.monotonic_ns())))
            one.sendall(variants[rank % NUM_VARIANTS][index])


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
