"""Streams of frames as a broken or malicious peer would send them: true ones, damaged at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from traceml_client.protocol.frames import frame

Damage = Callable[[random.Random, bytes], bytes]


def flip_bits(choose: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(choose.randrange(1, 8)):
        damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
    return bytes(damaged)


def leave_out(choose: random.Random, data: bytes) -> bytes:
    start = choose.randrange(len(data))
    return data[:start] + data[start + choose.randrange(1, 20) :]


def put_in(choose: random.Random, data: bytes) -> bytes:
    place = choose.randrange(len(data))
    return data[:place] + choose.randbytes(choose.randrange(1, 20)) + data[place:]


def lie_about_the_length(choose: random.Random, data: bytes) -> bytes:
    return choose.randrange(1 << 32).to_bytes(4, "little") + data[4:]


def change_a_value(choose: random.Random, data: bytes) -> bytes:
    """The frame stays whole; one byte of its message is another."""
    payload = bytearray(data[4:])
    payload[choose.randrange(min(len(payload), 40))] = choose.randrange(256)
    return frame(bytes(payload))


def break_off(choose: random.Random, data: bytes) -> bytes:
    return data[: choose.randrange(len(data))]


DAMAGES: Sequence[Damage] = (flip_bits, leave_out, put_in, lie_about_the_length, change_a_value, break_off)


def fuzzed(choose: random.Random, frames: Sequence[bytes], *, share: float = 0.3) -> bytes:
    """The frames one after the other, some of them twice, out of order or damaged."""
    stream = []
    for data in choose.choices(frames, k=2 * len(frames)):
        stream.append(choose.choice(DAMAGES)(choose, data) if choose.random() < share else data)
    return b"".join(stream)
