"""Records counted once, whatever is repeated or left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traceml_daemon.core.sequence import Sequence

pieces = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 40)), max_size=30)


def test_what_follows_is_taken_whole() -> None:
    sequence = Sequence()

    assert [sequence.accept(0, 10), sequence.accept(10, 5)] == [0, 0]
    assert (sequence.next_seq, sequence.num_received, sequence.num_gap) == (15, 15, 0)


def test_repeats_are_cut_off_and_gaps_counted() -> None:
    sequence = Sequence()
    sequence.accept(0, 10)

    assert sequence.accept(0, 10) == 10
    assert sequence.accept(5, 10) == 5
    assert sequence.accept(20, 3) == 0
    assert (sequence.next_seq, sequence.num_received, sequence.num_gap) == (23, 18, 5)


def test_what_is_missing_at_the_end_will_not_come() -> None:
    sequence = Sequence()
    sequence.accept(0, 10)
    sequence.close_at(13)
    sequence.close_at(12)

    assert (sequence.next_seq, sequence.num_received, sequence.num_gap) == (13, 10, 3)


@given(pieces)
def test_every_number_is_received_or_a_gap_and_never_both(sent: list[tuple[int, int]]) -> None:
    sequence = Sequence()
    taken: list[int] = []
    for first_seq, count in sent:
        repeated = sequence.accept(first_seq, count)
        taken.extend(range(first_seq + repeated, first_seq + count))

    assert len(taken) == len(set(taken)) == sequence.num_received
    assert sequence.num_received + sequence.num_gap == sequence.next_seq
    assert taken == sorted(taken)
