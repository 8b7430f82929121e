"""Small rows become large ones, and no record changes."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from traceml_client.protocol import columns
from traceml_daemon.storage.chunks import MAX_JOINED, Chunk, join_neighbours

lengths = st.lists(st.integers(1, 400), min_size=1, max_size=12)


def chunk(
    first_seq: int, count: int, *, incarnation_id: int = 1, is_wide: bool = False, salvaged: bool = False
) -> Chunk:
    words = array("q")
    for seq in range(first_seq, first_seq + count):
        words.extend((seq % 8, seq, seq, -1, seq + 1, 1 << 40 if is_wide else 5, 6, seq * 2))
    return Chunk(incarnation_id, 0, first_seq, count, *columns.pack(memoryview(words)), salvaged)


def records(chunks: list[Chunk]) -> list[tuple[object, ...]]:
    rows = []
    for piece in chunks:
        ends, tags, values = columns.unpack(piece.fmt, piece.num_records, piece.columns)
        for place in range(piece.num_records):
            row = tuple(column[place] for column in values)
            rows.append((piece.incarnation_id, piece.first_seq + place, ends[place], tags[place], row, piece.fmt))
    return sorted(rows)


@given(counts=lengths, num_ranks=st.integers(1, 3), is_wide=st.booleans())
def test_joined_rows_hold_the_same_records(counts: list[int], num_ranks: int, is_wide: bool) -> None:
    chunks, first = [], 0
    for number, count in enumerate(counts):
        for rank in range(num_ranks):
            chunks.append(chunk(first, count, incarnation_id=rank + 1, is_wide=is_wide and number % 3 == 1))
        first += count

    joined = list(join_neighbours(chunks))

    assert records(joined) == records(chunks)
    assert len(joined) <= len(chunks)
    assert all(piece.num_records <= MAX_JOINED for piece in joined)


def test_ten_small_rows_become_one() -> None:
    joined = list(join_neighbours([chunk(10 * number, 10) for number in range(10)]))

    assert joined == [chunk(0, 100)]


def test_rows_of_different_lengths_are_joined_too() -> None:
    assert list(join_neighbours([chunk(0, 3), chunk(3, 7), chunk(10, 1)])) == [chunk(0, 11)]


def test_a_gap_another_format_and_salvage_stay_apart() -> None:
    for pieces in (
        [chunk(0, 5), chunk(6, 5)],
        [chunk(0, 5), chunk(5, 5, is_wide=True)],
        [chunk(0, 5), chunk(5, 5, salvaged=True)],
    ):
        assert list(join_neighbours(pieces)) == pieces
