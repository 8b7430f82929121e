"""Whatever the network cuts and joins, the same frames come out, once and in order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_client.protocol.errors import FrameTooLarge, LocalProtocolError
from traceml_client.protocol.frames import HEADER_BYTES, MAX_FRAME_BYTES, FrameReader, frame

payload_lists = st.lists(st.binary(max_size=80), max_size=12)


def read(reader: FrameReader, pieces: list[bytes]) -> list[bytes]:
    return [bytes(payload) for piece in pieces for payload in reader.feed(piece)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(payloads=payload_lists, places=st.lists(st.integers(min_value=0, max_value=10_000), max_size=30))
def test_any_chunking_gives_the_same_payloads(payloads: list[bytes], places: list[int]) -> None:
    stream = b"".join(map(frame, payloads))
    reader = FrameReader()

    assert read(reader, cut(stream, places)) == payloads
    assert reader.num_pending_bytes == 0


def test_two_frames_cut_at_every_byte() -> None:
    payloads = [b"first", b"", b"the third one"]
    stream = b"".join(map(frame, payloads))
    for place in range(len(stream) + 1):
        assert read(FrameReader(), [stream[:place], stream[place:]]) == payloads


@given(payloads=payload_lists)
def test_one_byte_at_a_time(payloads: list[bytes]) -> None:
    stream = b"".join(map(frame, payloads))

    assert read(FrameReader(), [bytes([byte]) for byte in stream]) == payloads


@given(whole=payload_lists, last=st.binary(min_size=1, max_size=50), missing=st.integers(min_value=1, max_value=53))
def test_what_is_cut_off_is_pending_and_not_delivered(whole: list[bytes], last: bytes, missing: int) -> None:
    cut_frame = frame(last)[: max(0, len(last) + HEADER_BYTES - missing)]
    reader = FrameReader()

    assert read(reader, [b"".join(map(frame, whole)) + cut_frame]) == whole
    assert reader.num_pending_bytes == len(cut_frame)


@given(
    payloads=payload_lists,
    length=st.integers(min_value=65, max_value=0xFFFF_FFFF),
    places=st.lists(st.integers(min_value=0, max_value=10_000), max_size=8),
)
def test_a_length_over_the_limit_is_refused_before_its_bytes_are_buffered(
    payloads: list[bytes], length: int, places: list[int]
) -> None:
    small = [payload[:64] for payload in payloads]
    stream = b"".join(map(frame, small)) + length.to_bytes(4, "little") + b"x" * 60
    reader = FrameReader(max_frame_bytes=64)
    seen: list[bytes] = []

    def feed_all() -> None:
        for piece in cut(stream, places):
            seen.extend(bytes(payload) for payload in reader.feed(piece))

    with pytest.raises(FrameTooLarge, match=f"{length} bytes is over the limit of 64"):
        feed_all()
    assert seen == small
    assert reader.num_pending_bytes <= 64 + HEADER_BYTES


@given(junk=st.binary(max_size=400), places=st.lists(st.integers(min_value=0, max_value=400), max_size=6))
def test_random_bytes_never_make_it_hold_more_than_one_frame(junk: bytes, places: list[int]) -> None:
    reader = FrameReader(max_frame_bytes=64)
    try:
        read(reader, cut(junk, places))
    except FrameTooLarge:
        return
    assert reader.num_pending_bytes <= 64 + HEADER_BYTES


def test_the_limit_itself_is_allowed_and_one_more_is_our_own_error() -> None:
    largest = bytes(MAX_FRAME_BYTES)

    assert read(FrameReader(), [frame(largest)]) == [largest]
    with pytest.raises(LocalProtocolError, match="over the limit"):
        frame(largest + b"x")


def test_the_limit_may_rise_between_frames() -> None:
    reader = FrameReader(max_frame_bytes=8)
    assert read(reader, [frame(b"hello")]) == [b"hello"]

    reader.max_frame_bytes = 64
    assert read(reader, [frame(b"x" * 50)]) == [b"x" * 50]
