"""Ring records to packed columns and back."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_client.protocol import columns
from traceml_client.protocol.columns import NARROW, NOT_MEASURED, NUM_VALUES, RECORD_SIZE, WIDE
from traceml_client.protocol.errors import LocalProtocolError, RemoteProtocolError

LARGEST_NARROW = 0xFFFF_FFFE
int64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
narrow_value = st.integers(min_value=NOT_MEASURED, max_value=LARGEST_NARROW)
Record = tuple[int, int, list[int]]


def records(value: st.SearchStrategy[int]) -> st.SearchStrategy[list[Record]]:
    values = st.lists(value, min_size=NUM_VALUES, max_size=NUM_VALUES)
    return st.lists(st.tuples(st.integers(0, 255), int64, values), min_size=1, max_size=20)


def ring_bytes(rows: list[Record]) -> memoryview:
    words = array("q")
    for tag, end_ns, values in rows:
        words.extend((tag, end_ns, *values))
    return memoryview(words.tobytes())


def unpacked(fmt: str, count: int, packed: bytes) -> list[Record]:
    ends, tags, values = columns.unpack(fmt, count, packed)
    null = columns.null_of(fmt)
    rows = zip(*([NOT_MEASURED if value == null else value for value in column] for column in values), strict=True)
    return [(tag, end, list(row)) for tag, end, row in zip(tags, ends, rows, strict=True)]


@given(records(narrow_value))
def test_small_values_take_33_bytes_and_come_back(rows: list[Record]) -> None:
    fmt, packed = columns.pack(ring_bytes(rows))

    assert fmt == NARROW
    assert len(packed) == 33 * len(rows)
    columns.check(fmt, len(rows), packed)
    assert unpacked(fmt, len(rows), packed) == rows


@given(records(int64))
def test_any_values_come_back(rows: list[Record]) -> None:
    fmt, packed = columns.pack(ring_bytes(rows))

    assert len(packed) == RECORD_SIZE[fmt] * len(rows)
    assert unpacked(fmt, len(rows), packed) == rows


@pytest.mark.parametrize(
    ("value", "fmt"),
    [(0, NARROW), (NOT_MEASURED, NARROW), (LARGEST_NARROW, NARROW), (LARGEST_NARROW + 1, WIDE), (-2, WIDE)],
)
def test_one_value_decides_the_format(value: int, fmt: str) -> None:
    rows: list[Record] = [(0, 5, [1, 2, 3, 4, 5, 6]), (0, 6, [1, 2, value, 4, 5, 6])]

    assert columns.pack(ring_bytes(rows))[0] == fmt


@given(records(narrow_value), st.data())
def test_the_front_can_be_cut_off(rows: list[Record], data: st.DataObject) -> None:
    num_dropped = data.draw(st.integers(0, len(rows) - 1))
    fmt, packed = columns.pack(ring_bytes(rows))

    rest = columns.drop_first(fmt, len(rows), packed, num_dropped)

    assert unpacked(fmt, len(rows) - num_dropped, rest) == rows[num_dropped:]


def test_bytes_that_are_not_whole_records_are_our_own_error() -> None:
    with pytest.raises(LocalProtocolError, match="not whole records"):
        columns.pack(memoryview(bytes(65)))


@pytest.mark.parametrize(
    ("fmt", "count", "size"),
    [("qB7I", 1, 33), (NARROW, 0, 0), (NARROW, -1, 33), (NARROW, 2, 33), (WIDE, 1, 33), ("", 1, 33)],
)
def test_what_no_rank_sends_is_the_peers_error(fmt: str, count: int, size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="are not"):
        columns.check(fmt, count, bytes(size))
